"""What a pytest user asks of a run in the lab: what is refused before a lab boots, and what comes out of it."""

import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from night_cases import at_night

from c4bench.lab.machine import packages
from c4bench.pytest_plugin.outside import _date, chosen, progress
from c4bench.record import RunDirectory

NO_PYVERBS = pytest.mark.skipif(
    bool(packages.pyverbs_obstacle()), reason="pyverbs is not installed: no lab can run here"
)
SETTINGS = "[pytest]\nc4_fixtures = true\n"
TEST = "def test_good(): pass\ndef test_bad(): assert False\n"


def run(folder, *words, test=TEST, conftest="", **rest):
    """Run pytest for the lab in a new project; return the exit code and all output."""
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(test)
    argv = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **rest
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """Run pytest in this process, which is faster, in a new project."""
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = pytest.main(["-p", "no:hypothesispytest", *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


@NO_PYVERBS
@pytest.mark.parametrize(
    ("words", "test", "code", "said"),
    [
        *at_night((["test_other.py"], TEST, 4, "file or directory not found: test_other.py")),
        (["test_it.py::test_other"], TEST, 4, "not found"),
        (["-k", "nothing"], TEST, 5, "no tests collected (2 deselected)"),
        ([], "import no_such_module\n", 2, "No module named 'no_such_module'"),
        (["--c4-topology=nowhere"], TEST, 2, "nowhere"),
    ],
)
def test_what_cannot_be_collected_is_said_before_a_lab_boots(shown, tmp_path, words, test, code, said):
    """Unknown files and tests, nothing chosen, import errors: pytest's own message and exit code, and no run."""
    (tmp_path / "test_it.py").write_text(test)
    got, output = shown("--hosts=softroce", "--junitxml=j.xml", *words)
    assert got == code, output
    assert said in output
    assert not (tmp_path / "reports").exists()
    assert not (tmp_path / "j.xml").exists()


def test_a_missing_pyverbs_is_said_at_once(tmp_path):
    """One line with the fix, and no traceback of a test that imports it, which takes a lab minutes to fail with."""
    hidden = (
        "import sys\nfrom c4bench.lab.machine import packages\n"
        "packages.pyverbs_obstacle = lambda: 'No module named pyverbs'\n"
    )
    code, output = run(tmp_path, "--hosts=softroce", test="import pyverbs_is_missing\n", conftest=hidden)
    assert code == 3
    assert output == "c4bench: pyverbs cannot be imported (No module named pyverbs): run `c4bench setup`\n"


def test_a_junit_report_has_the_machines_date(tmp_path):
    """A lab's clock begins in 2026; a CI service sorts reports by when they were made."""
    report = tmp_path / "junitxml"
    report.write_text('<testsuites><testsuite timestamp="2026-01-01T00:00:02" time="1.5"><testcase/></testsuite>')
    _date(report, "2031-05-06T07:08:09+02:00")
    assert report.read_text().count("timestamp=") == 1
    assert 'timestamp="2031-05-06T07:08:09+02:00" time="1.5"' in report.read_text()
    _date(tmp_path / "absent", "2031-05-06T07:08:09+02:00")


@pytest.mark.parametrize("words", [["-n", "2"], ["-nauto"], ["--numprocesses=4"]])
def test_parallel_runs_are_refused_with_a_reason(shown, capsys, words):
    """Whether pytest-xdist is installed or not: one line, exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        shown("--hosts=softroce", *words)
    output = capsys.readouterr().err
    assert "scenarios share the hosts and run one after another" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"), [(["--pdb"], "add --c4-time=real"), (["--trace", "--c4-time=real"], "needs a terminal")]
)
def test_a_debugger_that_could_not_be_used_is_refused(shown, tmp_path, words, said):
    """In virtual time, or where nobody sits at a terminal, a debugger would end or hang the run."""
    code, output = shown("--hosts=softroce", *words)
    assert code == 2
    assert said in output
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("words", [[], ["--hosts=softroce"]])
def test_fixtures_are_explained(shown, words):
    """`--fixtures` shows what each fixture is, with or without hosts, and boots nothing."""
    code, output = shown("--fixtures", *words)
    assert code == 0, output
    assert "A training job over all hosts" in output
    assert "Break something, bounded and witnessed" in output
    assert "there are no hosts in this run" not in output


@pytest.mark.parametrize("hosts", ["softroce", "hosts.yml"])
@pytest.mark.parametrize("flag", ["--markers", "--co", "--version", "--cache-show"])
def test_what_only_shows_something_boots_nothing(shown, tmp_path, flag, hosts):
    """These end at once, as without hosts."""
    (tmp_path / f"{tmp_path.name}.py").write_text(TEST)
    code, output = shown(flag, f"--hosts={hosts}")
    assert code == 0, output
    assert not (tmp_path / "reports").exists()


def test_a_collection_says_how_many_tests_it_chose():
    """Also in pytest's long and short form, and for one test."""
    assert chosen("a::b\n\n3/10 tests collected (7 deselected) in 0.1s\n") == 3
    assert chosen("================ 12 tests collected in 0.1s ================\n") == 12
    assert chosen("1 test collected in 0.1s\n") == 1
    assert chosen("no tests collected in 0.1s\n") == 0


# Run an inner pytest that writes where a lab's would write.
CARRIED = """
import subprocess, sys
from pathlib import Path
import pytest
from c4bench.pytest_plugin.outside import carried

@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if config.option.collectonly:
        return None
    with carried(config, Path("folder").resolve()) as words:
        assert any(word.startswith("cache_dir=") for word in words)
        inner = [sys.executable, "-m", "pytest", "-p", "no:conftest", "--noconftest", *sys.argv[1:], *words]
        done = subprocess.run(inner, capture_output=True, text=True)
        sys.stdout.write(done.stdout)
    return done.returncode
"""


def test_files_asked_for_and_failed_tests_come_out(tmp_path):
    """The JUnit file and the log lie where the user said; `--lf` then runs what failed, and nothing is left between."""
    code, output = run(tmp_path, "--junitxml=out/j.xml", "--log-file=log.txt", conftest=CARRIED)
    assert code == 1, output
    (suite,) = ET.parse(tmp_path / "out/j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert (tmp_path / "log.txt").exists()
    assert not (tmp_path / "folder").exists()
    assert "test_it.py::test_bad" in (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text()
    code, output = run(tmp_path, "--lf", conftest=CARRIED)
    assert code == 1
    assert "1 failed in" in output


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path):
    """One line with the file, before anything runs."""
    (tmp_path / "out").write_text("a file")
    with_conftest = CARRIED.replace("return done.returncode", "return 9")
    code, output = run(tmp_path, "--log-file=", "--junitxml=out/j.xml", conftest=with_conftest)
    assert code not in {0, 9}
    assert "name a file that can be written" in output


COUNTED = """
import sys
from c4bench.pytest_plugin.outside import collect
def pytest_cmdline_main(config):
    if config.option.collectonly:
        return None
    sys.stdout.write(f"counted {collect(config)}")
    return 0
"""


@pytest.mark.parametrize(
    "words", [["-qq", "--no-summary"], *(pytest.param([word], marks=pytest.mark.nightly) for word in ("-q", "-v"))]
)
def test_tests_are_counted_however_much_pytest_says(tmp_path, words):
    """Options about how much pytest prints do not change the number of tests in its progress."""
    assert run(tmp_path, *words, conftest=COUNTED)[1].endswith("counted (0, 2)")


def test_progress_is_told_without_a_terminal(tmp_path, capsys):
    """How many tests have run, of how many, and which was the last; tests of an earlier part are not counted."""
    directory = RunDirectory(tmp_path)
    directory.event(0.0, "ended", node="a::old", passed=True)
    with progress(directory, 5, every_s=0.05):
        while "0 of 5 tests have run\n" not in (told := capsys.readouterr().err):
            pass
        directory.event(0.0, "ended", node="a::b", passed=True)
        while "1 of 5 tests have run, the last a::b\n" not in (told := capsys.readouterr().err):
            pass
    assert told.startswith("c4bench: ")
    assert "lab-progress" not in {thread.name for thread in threading.enumerate()}
    with progress(directory, 0, every_s=0.05):
        while not (told := capsys.readouterr().err):
            pass
    assert told.endswith(": 0 tests have run\n"), "how many there are is not known"


SIGNALLED = """
import os, signal, sys
from c4bench.lab.machine.containment import unwinding
number = signal.Signals[sys.argv[1]]
try:
    with unwinding():
        os.kill(os.getpid(), number)
        print("went on")
finally:
    print("removed")
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_unwinds(name, code):
    """What is to be removed is removed, and the exit code is a shell's; an ignored signal stays ignored."""
    argv = [sys.executable, "-c", SIGNALLED, name]
    heed = {"preexec_fn": lambda: signal.signal(signal.Signals[name], signal.SIG_DFL)}  # also under nohup
    done = subprocess.run(argv, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False, **heed)
    assert (done.returncode, done.stdout) == (code, "removed\n")
    quoted = f"trap '' {name.removeprefix('SIG')}; exec \"$@\""
    done = subprocess.run(["sh", "-c", quoted, "sh", *argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\nremoved\n")
