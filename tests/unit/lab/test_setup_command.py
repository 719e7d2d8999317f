"""`c4bench setup`: what is missing is said in one line with the fix, and pyverbs is linked in only where it works."""

import fcntl
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import c4bench
from c4bench.cli.main import main
from c4bench.errors import UnhealthyError
from c4bench.lab.machine import packages
from c4bench.lab.machine.kernel import build
from c4bench.lab.machine.kernel.steps import BuildSteps


@pytest.fixture(autouse=True)
def tried_again():
    """Whether pyverbs can be imported is found out anew in each test."""
    packages.pyverbs_obstacle.cache_clear()
    yield
    packages.pyverbs_obstacle.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of kernels."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path))
    return tmp_path


def test_check_says_what_is_missing_in_a_few_seconds(cache, capsys):
    """Exit code 3, one line with the fix for each thing, in under five seconds, and nothing is made."""
    began = time.monotonic()
    code = main(["setup", "--check"])
    took_s = time.monotonic() - began
    said = capsys.readouterr().err.splitlines()
    assert code == 3
    assert "c4bench: lab kernel: not built; run `c4bench setup`" in said
    assert all(line.startswith("c4bench: ") for line in said)
    assert took_s < 5
    assert list(cache.iterdir()) == []


def test_a_second_set_up_at_once_is_refused(cache):
    """It names the process that builds, and `--check` says so too; when that has ended, the rest of it is named."""
    holder = f"import fcntl, time; lock = open({str(cache / 'build.lock')!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
    holder += "lock.write('4711'); lock.flush(); print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert build.state() == "being built by process 4711"
        with pytest.raises(UnhealthyError, match="is being built by process 4711: run this again when that has ended"):
            build.build()
        other.kill()
    assert build.state() == "not built"
    (cache / "build-abc").mkdir()
    assert build.state() == "half built, by a set-up that was killed"
    with (cache / "build.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def fake_python(path, text, code=0):
    """A program that stands for another Python, and says this about its pyverbs."""
    path.write_text(f"#!/bin/sh\necho '{text}' >&{2 if code else 1}\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def without(tmp_path, monkeypatch):
    """An environment in which pyverbs cannot be imported, and its folder of packages."""
    site = tmp_path / "site"
    site.mkdir()
    own = fake_python(tmp_path / "own", "ModuleNotFoundError: No module named pyverbs", 1)
    monkeypatch.setattr(sys, "executable", own)
    monkeypatch.setattr(packages.sysconfig, "get_path", lambda _: str(site))
    return site


def test_a_distribution_without_pyverbs_is_named(without, tmp_path, monkeypatch):
    """The fix is the package, and no link is left."""
    none = fake_python(tmp_path / "python3", "ModuleNotFoundError: No module named pyverbs", 1)
    monkeypatch.setattr(packages, "DISTRIBUTION", none)
    with pytest.raises(UnhealthyError, match="install python3-pyverbs, then run `c4bench setup`"):
        packages.link_pyverbs()
    assert list(without.iterdir()) == []


def test_a_pyverbs_for_another_python_is_named(without, tmp_path, monkeypatch):
    """Its compiled modules do not load here; the fix is an environment of the distribution's Python."""
    other = fake_python(tmp_path / "python3", "/usr/lib/python3/dist-packages/pyverbs\ncpython-39")
    monkeypatch.setattr(packages, "DISTRIBUTION", other)
    with pytest.raises(UnhealthyError, match=f"is for cpython-39 and this Python is {sys.implementation.cache_tag}"):
        packages.link_pyverbs()
    assert list(without.iterdir()) == []


def test_a_wrong_pyverbs_in_the_way_is_named_and_left(without, tmp_path, monkeypatch):
    """One that pip has installed is pip's to remove."""
    good = fake_python(tmp_path / "python3", f"/somewhere/pyverbs\n{sys.implementation.cache_tag}")
    monkeypatch.setattr(packages, "DISTRIBUTION", good)
    (without / "pyverbs").mkdir()
    with pytest.raises(UnhealthyError, match="pip uninstall pyverbs"):
        packages.link_pyverbs()
    assert (without / "pyverbs").is_dir()


def test_a_link_that_does_not_help_is_taken_back(without, tmp_path, monkeypatch):
    """The last line of Python's error is in the message."""
    good = fake_python(tmp_path / "python3", f"/somewhere/pyverbs\n{sys.implementation.cache_tag}")
    monkeypatch.setattr(packages, "DISTRIBUTION", good)
    with pytest.raises(UnhealthyError, match="cannot be imported here: ModuleNotFoundError"):
        packages.link_pyverbs()
    assert list(without.iterdir()) == []


def test_a_new_environment_gets_pyverbs(tmp_path):
    """A real environment of the distribution's Python: pyverbs is linked in and works; the next set-up finds it."""
    tried = [packages.DISTRIBUTION, "-c", "import pyverbs.device, sys; print(sys.implementation.cache_tag)"]
    found = subprocess.run(tried, capture_output=True, text=True, check=False)
    if found.stdout.strip() != sys.implementation.cache_tag:
        pytest.skip("no-pyverbs: the distribution has none for this Python")
    subprocess.run([packages.DISTRIBUTION, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    shared = tmp_path / "shared"  # what c4bench needs, and no pyverbs
    shared.mkdir()
    (shared / "c4bench").symlink_to(Path(c4bench.__file__).parent)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name not in {"c4bench", "pyverbs"} and entry.suffix != ".pth":
            (shared / entry.name).symlink_to(entry)
    argv = [tmp_path / "env/bin/python", "-m", "c4bench.cli.main", "setup", "--environment"]
    environment = os.environ | {"PYTHONPATH": str(shared)}
    first, again = (
        subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    (link,) = tmp_path.glob("env/lib/python3*/site-packages/pyverbs")
    assert first == f"c4bench: pyverbs: {link} -> {link.readlink()}\n"
    assert again == ""


def test_what_apt_says_is_passed_on(tmp_path, monkeypatch):
    """A failed update is one line: apt's own error, and the command to type."""
    apt = tmp_path / "apt-get"
    apt.write_text(
        "#!/bin/sh\necho 'W: other' >&2; echo 'E: Failed to fetch http://deb Could not connect' >&2; exit 100\n"
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    with pytest.raises(UnhealthyError, match=r"apt-get update failed: .*mend apt's sources or proxy") as refused:
        packages.install(["flex"])
    assert "\n" not in str(refused.value)
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    with pytest.raises(UnhealthyError, match="as root, run apt-get install --no-install-recommends flex"):
        packages.install(["flex"])


def test_packages_that_are_missing_are_found(tmp_path, monkeypatch):
    """A package that dpkg knows but has not installed counts as missing; without dpkg nobody can tell."""
    query = tmp_path / "dpkg-query"
    lines = [f"{name} install ok installed" for name in packages.NEEDED if name not in {"flex", "bison"}]
    query.write_text("#!/bin/sh\n" + "\n".join(f"echo '{line}'" for line in [*lines, "flex deinstall ok config-files"]))
    query.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert packages.missing() == ["flex", "bison"]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert packages.missing() == []


def test_an_interrupted_step_takes_its_processes_with_it(tmp_path):
    """What a step has started, and what that has started, is killed when the build is interrupted."""

    def interrupt(line):
        raise KeyboardInterrupt(line)

    marker = tmp_path / "still-there"
    script = f"(sleep 1; touch {marker}) & echo started; sleep 30"
    with pytest.raises(KeyboardInterrupt):
        BuildSteps(tmp_path, {}).run("a step", ["sh", "-c", script], interrupt)
    time.sleep(1.5)
    assert not marker.exists()
