"""Bad input and unusable machines are reported in one line with the fix, and leave nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SCENARIOS = REPOSITORY / "tests/scenarios"


def run(*arguments, cwd=REPOSITORY, **environment):
    """Run a command line as a user would."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        check=False,
    )


def one_line(done, code, *words):
    """Check the exit code, and that standard error is one line with these words."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def refused(directory, *arguments, words):
    """Check that pytest refuses a run of the scenarios, started from a directory, and leaves no run directory there."""
    one_line(run("pytest", *arguments, cwd=directory), 2, *words)
    assert not (directory / "reports").exists()


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
def test_a_wrong_inventory_is_refused(tmp_path, content, words):
    """A missing, empty, torn or misspelt inventory is refused before the run, with file, line and key."""
    if content is not None:
        (tmp_path / "hosts.yml").write_text(content)
    refused(tmp_path, f"--hosts={tmp_path / 'hosts.yml'}", SCENARIOS, words=words)


def test_a_path_elsewhere_after_a_space_is_refused(tmp_path):
    """`--hosts PATH` without an equals sign is refused, because pytest would treat the path as a test."""
    path = tmp_path / "hosts.yml"
    path.write_text("all:\n  hosts:\n    h0: {}\n")
    one_line(run("pytest", "--hosts", path), 2, f"write --hosts={path}")


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
def test_an_option_about_hosts_that_means_nothing_is_refused(tmp_path, hosts, option, words):
    """Bad options are refused before a lab boots or a host is contacted, and no run directory is created."""
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {here: {ansible_connection: local}}}")
    given = "softroce" if hosts == "softroce" else path
    refused(tmp_path, f"--hosts={given}", *option.split(), SCENARIOS / "hosts", words=words)


def test_a_misspelt_lab_is_recognised(tmp_path):
    """`--hosts=softrocee` is no inventory that is missing, but the lab."""
    refused(tmp_path, "--hosts=softrocee", SCENARIOS, words=("no such file; did you mean softroce?",))


def test_an_unknown_topology_is_refused(tmp_path):
    """An unknown topology is refused with a list of the known ones, and no run directory is created."""
    refused(tmp_path, "--hosts=softroce", "--c4-topology=moebius", SCENARIOS, words=("moebius", "clos-2x4"))


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
def test_commands_refuse_what_is_not_there(arguments, code, words):
    """A wrong name or path is reported in one line with the usage exit code."""
    one_line(run("c4bench.cli.main", *arguments), code, *words)


def test_a_lab_without_a_kernel_says_how_to_get_one(tmp_path):
    """Without a kernel the lab does not start, and the error names `c4bench setup`."""
    done = run("c4bench.cli.main", "lab", "run", "--", "true", C4BENCH_CACHE=tmp_path)
    one_line(done, 3, "c4bench setup")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("build.TOOLS = ('no-such-compiler',)", ("no-such-compiler", "c4bench setup")),
        ("build.BUILD_BYTES = 1 << 60", ("MiB free", "make room")),
        ("platform.machine = lambda: 'aarch64'", ("x86_64 only", "aarch64")),
        ("modes.obstacle = lambda mode: f'{mode} is forbidden'", ("seccomp is forbidden; ptrace is forbidden",)),
        ("run._can_execute = lambda _: False", ("4 GiB free", "TMPDIR")),
        ("build.os.environ['C4BENCH_KERNEL_SOURCE'] = 'no-such.deb'", ("no-such.deb", "no such file")),
    ],
)
def test_a_machine_that_cannot_build_says_why(tmp_path, patch, words):
    """A machine that cannot build the kernel is reported in one line, and no partial kernel is left."""
    imports = "import platform, sys; from c4bench.cli.main import main; from c4bench.lab.machine import modes, run"
    code = f"{imports}; from c4bench.lab.machine.kernel import build; {patch}; sys.exit(main(['setup']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"C4BENCH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (2 if "no-such.deb" in patch else 3), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr
    assert not list(tmp_path.glob("cache/kernel-*/linux"))


def test_collecting_needs_no_hosts():
    """Without hosts `--collect-only` works, and a run skips every scenario with the reason."""
    assert run("pytest", "--collect-only", "-q", "tests/scenarios").returncode == 0
    done = run("pytest", "-q", "-rs", "tests/scenarios/collective")
    assert done.returncode == 0
    assert "no-hosts: give --hosts=inventory.yml or --hosts=softroce" in done.stdout
