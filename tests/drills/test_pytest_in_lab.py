"""A pytest user's options in the lab, and what an interrupted lab leaves."""

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

SETTINGS = "[pytest]\nc4_fixtures = true\n"
TESTS = """
import time

def test_good():
    time.sleep(2)

def test_bad():
    answer = 6 * 9
    assert answer == 42

def test_never(): pass

def test_waits():
    time.sleep(1e6)
"""
DEBUGGER_WITHIN_S = 60.0
PYTEST = [sys.executable, "-m", "pytest", "--hosts=softroce", "--c4-topology=pair"]


@pytest.fixture
def project(tmp_path):
    """A project of a user's own."""
    return made(tmp_path)


def made(folder):
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text(TESTS)
    return folder


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A project whose tests have run in the lab until one failed, the exit code and the output."""
    project = made(tmp_path_factory.mktemp("project"))
    return project, *run(project, "-k", "not waits", "-x", "--durations=2", "--junitxml=out/j.xml")


def run(project, *words):
    """Run it in the lab: exit code and output."""
    argv = [*PYTEST, *words]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def keys(folder):
    """Private keys under a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if path.suffix == ".key" or b"PRIVATE KEY" in path.read_bytes()[:64]]


def test_options_work_and_files_come_out(failed):
    """-k, -x, --durations and --junitxml do in the lab what they do elsewhere; no key is left."""
    project, code, output = failed
    assert code == 1, output
    assert "1 failed, 1 passed, 1 deselected" in output
    assert "2.0" in output.partition("slowest 2 durations")[2].partition("call")[0]
    (suite,) = ET.parse(project / "out/j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert not keys(project)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(other, marks=pytest.mark.nightly) for other in (signal.SIGTERM, signal.SIGHUP))],
)
def test_an_interrupted_lab_leaves_no_key_and_no_process(project, number):
    """Ctrl-C, SIGTERM and SIGHUP end a lab at once; of `c4bench lab run` not even a folder is left."""
    command = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", "--topology=pair", "--", "sh", "-c"]
    with tempfile.TemporaryDirectory(prefix="c4bench-drill-", dir="/tmp") as scratch:
        for argv in ([*command, "echo up; sleep 1e6"], [*PYTEST, "-s", "-k", "good or waits", "--c4-time=real"]):
            output = project / "output"
            with output.open("wb") as said:
                # A shell's background jobs ignore Ctrl-C, and so would this one.
                alone = ["env", "--default-signal", f"TMPDIR={scratch}", *argv]
                lab = subprocess.Popen(alone, cwd=project, stdout=said, stderr=said)
            try:
                until(lambda: output.read_text().rstrip().endswith(("up", "test_it.py .")), lab)  # noqa: B023
                lab.send_signal(number)
                assert lab.wait(30) == code_of(number, pytest_=argv[2] == "pytest"), output.read_text()
            finally:
                lab.kill()
            assert "Traceback" not in output.read_text()
            assert not keys(project)
            assert not list(Path(scratch).glob("c4bench-*"))
            assert not [entry for entry in Path("/proc").glob("[0-9]*") if works_in(entry, project, scratch)]


def code_of(number, *, pytest_):
    """A shell's exit code for a signal; pytest has its own for Ctrl-C."""
    return 2 if pytest_ and number is signal.SIGINT else 128 + number


def works_in(entry, *folders):
    """Whether a process has its working directory in one of these."""
    try:
        return any((entry / "cwd").readlink().is_relative_to(folder) for folder in folders)
    except OSError:
        return False


def until(true, lab):
    """Wait for it, as long as the lab runs."""
    while not true():
        assert lab.poll() is None
        time.sleep(0.05)


def test_a_debugger_has_the_terminal(failed):
    """--pdb in real time: the variables of the test that --lf runs again can be printed, and `q` ends the run."""
    project, *_ = failed
    master, slave = pty.openpty()
    argv = [*PYTEST, "--pdb", "--lf", "--c4-time=real"]
    lab = subprocess.Popen(argv, cwd=project, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    said = b""
    for prompt, answer in ((b"(Pdb) ", b"answer + 1000\n"), (b"1054", b"q\n")):
        while prompt not in said:
            assert select.select([master], [], [], DEBUGGER_WITHIN_S)[0], said
            said += os.read(master, 4096)
        os.write(master, answer)
    assert lab.wait(60) == 2
    assert b"rerun previous 1 failure" in said
    os.close(master)
