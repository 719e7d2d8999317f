"""Bad input and unusable machines are reported in one line with the fix, and leave nothing behind."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from c4bench.cli.main import main
from c4bench.lab.machine import modes, run
from c4bench.lab.machine.kernel import build

REPOSITORY = Path(__file__).parents[3]


def one_line(code, said, expected, *words):
    """Check the exit code, and that standard error is one line with these words."""
    assert code == expected, said
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    for word in words:
        assert word in lines[0]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Check that pytest refuses a run of a scenario in one line, before it starts, and leaves no run directory."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")
    (tmp_path / "test_it.py").write_text("def test_it(job): pass\n")
    monkeypatch.chdir(tmp_path)

    def check(*arguments, words):
        code = pytest.main(["-p", "no:hypothesispytest", *map(str, arguments)])
        one_line(code, capsys.readouterr().err, 2, *words)
        assert not (tmp_path / "reports").exists()

    return check


def alone(*words):
    """Run pytest in a process of its own, in the repository."""
    argv = [sys.executable, "-m", "pytest", *words]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.fixture
def called(capsys):
    """Run the command `c4bench`: exit code and standard error."""

    def call(*words):
        return main(list(map(str, words))), capsys.readouterr().err

    return call


EMPTY = "all:\n  hosts: {}\n"
TORN = "all:\n  hosts:\n   h0: [\n"
MISSPELT = "all:\n  hosts:\n    h0:\n      c4:\n        nic: []\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("hosts.yml",)),
        (EMPTY, ("hosts.yml", "no hosts")),
        (TORN, ("hosts.yml:",)),
        (MISSPELT, ("hosts.yml:5", "c4.nic", "unknown key")),
    ],
)
def test_a_wrong_inventory_is_refused(refused, tmp_path, content, words):
    """A missing, empty, torn or misspelt inventory is refused before the run, with file, line and key."""
    if content is not None:
        (tmp_path / "hosts.yml").write_text(content)
    refused(f"--hosts={tmp_path / 'hosts.yml'}", words=words)


def test_a_path_elsewhere_after_a_space_is_refused(tmp_path):
    """`--hosts PATH` without an equals sign is refused, because pytest would treat the path as a test."""
    path = tmp_path / "hosts.yml"
    path.write_text("all:\n  hosts:\n    h0: {}\n")
    done = alone("--hosts", path)
    one_line(done.returncode, done.stderr, 2, f"write --hosts={path}")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--c4-require=warp", ("'warp' is no capability", "reachable, python")),
        ("--c4-resume", ("which run?", "--c4-run-dir")),
        ("--c4-resume --c4-run-dir=no/such/run", ("no/such/run is not a run directory",)),
        ("--c4-scheduler=cron", ("cron", "slurm, kubernetes")),
    ],
)
@pytest.mark.parametrize("hosts", ["softroce", "inventory"])
def test_an_option_about_hosts_that_means_nothing_is_refused(refused, tmp_path, hosts, option, words):
    """Bad options are refused before a lab boots or a host is contacted, and no run directory is created."""
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {here: {ansible_connection: local}}}")
    given = "softroce" if hosts == "softroce" else path
    refused(f"--hosts={given}", *option.split(), words=words)


def test_a_misspelt_lab_is_recognised(refused):
    """`--hosts=softrocee` is no inventory that is missing, but the lab."""
    refused("--hosts=softrocee", words=("no such file; did you mean softroce?",))


def test_an_unknown_topology_is_refused(refused):
    """An unknown topology is refused with a list of the known ones, and no run directory is created."""
    refused("--hosts=softroce", "--c4-topology=moebius", words=("moebius", "clos-2x4"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("lab", "run", "--topology=moebius", "--", "true"), 2, ("moebius",)),
        (("report", "no/such/run"), 2, ("no/such/run",)),
        (("detect", "no/such/file"), 2, ("no/such/file",)),
        (("fault", "show", "nic.explode"), 2, ("nic.explode", "nic.")),
        (("doctor", "--hosts=no/such/inventory.yml"), 2, ("no/such/inventory.yml",)),
    ],
)
def test_commands_refuse_what_is_not_there(called, arguments, code, words):
    """A wrong name or path is reported in one line with the usage exit code."""
    one_line(*called(*arguments), code, *words)


def test_a_lab_without_a_kernel_says_how_to_get_one(called, tmp_path, monkeypatch):
    """Without a kernel the lab does not start, and the error names `c4bench setup`."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path))
    one_line(*called("lab", "run", "--", "true"), 3, "c4bench setup")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("where", "name", "value", "words"),
    [
        (build, "TOOLS", ("no-such-compiler",), ("no-such-compiler", "c4bench setup")),
        (build, "BUILD_BYTES", 1 << 60, ("MiB free", "make room")),
        (platform, "machine", lambda: "aarch64", ("x86_64 only", "aarch64")),
        (modes, "obstacle", "{} is forbidden".format, ("seccomp is forbidden; ptrace is forbidden",)),
        (run, "_can_execute", lambda _: False, ("4 GiB free", "TMPDIR")),
    ],
)
def test_a_machine_that_cannot_build_says_why(called, tmp_path, monkeypatch, where, name, value, words):
    """A machine that cannot build the kernel is reported in one line, and no partial kernel is left."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(where, name, value)
    one_line(*called("setup"), 3, *words)
    assert not list(tmp_path.glob("cache/kernel-*/linux"))


def test_a_source_that_is_not_there_is_refused(called, tmp_path, monkeypatch):
    """A kernel's source that the user has named is that source or none."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("C4BENCH_KERNEL_SOURCE", "no-such.deb")
    one_line(*called("setup"), 2, "no-such.deb", "no such file")


@pytest.mark.nightly
def test_collecting_needs_no_hosts():
    """Without hosts `--collect-only` finds every scenario."""
    assert alone("--collect-only", "-q", "tests/scenarios").returncode == 0


def test_a_run_without_hosts_skips_every_scenario():
    """It says why, and passes."""
    done = alone("-q", "-rs", "tests/scenarios/collective")
    assert done.returncode == 0
    assert "no-hosts: give --hosts=inventory.yml or --hosts=softroce" in done.stdout
