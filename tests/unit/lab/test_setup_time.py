"""How long set-up took, from nothing to a kernel that has been checked."""

import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import build, cache
from c4bench.lab.machine.kernel.cache import Facts, Kernel
from c4bench.lab.machine.run import LabRun
from c4bench.pytest_plugin import outside
from c4bench.record import RunDirectory

BUILT = Kernel(Path("/nowhere"), "7.3.4", 1.0, Landmarks(0, 0, 0, 0, 0, 0, 0, 0))


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A cache whose builds take no time: a source, and a compiler and a check that are stand-ins."""
    monkeypatch.setenv("C4BENCH_CACHE", str(tmp_path / "cache"))
    given = tmp_path / "linux-source-7.3.4.tar.xz"
    given.touch()
    monkeypatch.setenv(cache.SOURCE_VARIABLE, str(given))
    monkeypatch.setattr(build, "_check_machine", lambda _: None)
    monkeypatch.setattr(build, "prove", lambda built, _: built)

    def compile_(origin, staged, *_):
        staged.mkdir()
        return Facts(BUILT.version, cache.identity(origin), BUILT.build_s, BUILT.landmarks)

    monkeypatch.setattr(build, "_compile", compile_)


@pytest.mark.usefixtures("compiled")
def test_the_set_up_that_built_the_kernel_is_on_record():
    """How long it took since it began; a later set-up, which finds the kernel, leaves that as it is."""
    took = build.build(time.time() - 300).setup_s
    assert 300 <= took < 310
    assert build.build(time.time() - 1).setup_s == took


@pytest.mark.usefixtures("compiled")
def test_a_kernel_that_was_built_alone_has_no_set_up():
    """Nobody said when set-up began: nothing is made up."""
    assert build.build().setup_s is None
    assert build.build(time.time() - 300).setup_s is None


@pytest.mark.parametrize("setup_s", [330.5, None])
def test_a_run_tells_how_long_set_up_took(tmp_path, setup_s):
    """`timings.jsonl` has what was recorded; where nothing was, no figure."""
    outside.record_times(
        RunDirectory(tmp_path), msgspec.structs.replace(BUILT, setup_s=setup_s), LabRun(0, 1.0, 1.0, 1.0)
    )
    told = {line.name: line.value for line in RunDirectory(tmp_path).timings()}
    assert told["setup.kernel_build_s"] == BUILT.build_s
    assert told.get("setup.total_s") == setup_s


def test_make_says_when_set_up_began_where_there_was_nothing(tmp_path):
    """The kernel's build is given the time when make began, unless an environment is there already."""
    root = Path(__file__).parents[3]
    command = ["make", "--dry-run", "kernel", f"VENV={tmp_path}"]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    began = float(said.partition("c4bench setup --began=")[2].split()[0])
    assert abs(time.time() - began) < 60
    (tmp_path / ".ready").touch()
    again = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert "c4bench setup" in again
    assert "--began" not in again
