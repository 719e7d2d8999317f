"""Whatever happens in a session decides the run: pytest's exit code, all reports and the night say the same."""

import json
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from night_cases import at_night
from property_examples import examples

from c4bench.cli.main import main
from c4bench.foreign_text import markdown
from c4bench.model.measurement import Outcome
from c4bench.pytest_plugin.outside import show_so_far
from c4bench.record import RunDirectory
from c4bench.report import evaluate_run

pytest_plugins = "pytester"  # to run pytest within this process, which is faster
GOOD = "def test_good(measure): measure('speed', 1.0, unit='1', at_least=1)\n"
# What stands beside the good scenario in a project: (its code, the verdict, what the run says of it).
CASES = {
    "nothing": ("", "pass", []),
    "a plain test that fails": ("def test_bad(): assert 1 == 2\n", "fail", ["it.bad: assert 1 == 2"]),
    "a misspelt fixture": ("def test_bad(mesure): pass\n", "fail", ["it.bad: fixture 'mesure' not found"]),
    "an error in the set-up": (
        "import pytest\n@pytest.fixture\ndef broken(): raise ValueError('worn')\ndef test_bad(broken): pass\n",
        "fail",
        ["it.bad: ValueError: worn"],
    ),
    "an error in the teardown": (
        "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    raise ValueError('worn')\n"
        "def test_bad(measure, broken): pass\n",
        "fail",
        ["it.bad: ValueError: worn"],
    ),
    "a limit missed in the teardown": (
        "import pytest\n@pytest.fixture\ndef late(measure):\n    yield\n    measure('late', 2.0, at_most=1)\n"
        "def test_bad(late): pass\n",
        "fail",
        [],
    ),
    "a good plain test": ("def test_fine(): pass\n", "pass", []),
    "nothing seen": (
        "from c4bench.errors import InconclusiveError\ndef test_dim(measure): raise InconclusiveError('dark')\n",
        "inconclusive",
        ["it.dim: dark"],
    ),
    "most are skipped": (
        "import pytest\n@pytest.mark.parametrize('n', 'abc')\ndef test_no(measure, n): pytest.skip('no-gpu: none')\n",
        "inconclusive",
        [],
    ),
    "most are skipped beside many plain tests": (
        "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_no(measure, n): pytest.skip('no-gpu: none')\n"
        "@pytest.mark.parametrize('n', range(9))\ndef test_fine(n): pass\n",
        "inconclusive",
        [],
    ),
    "an exit that claims success": (
        "import pytest\ndef test_leaves(): pytest.exit('enough', returncode=0)\ndef test_never(measure): pass\n",
        "inconclusive",
        ["the session: 2 of 3 tests have not ended (interrupted: Exit: enough)"],
    ),
    "a failure that was expected": (
        "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n",
        "pass",
        [],
    ),
}
# What stands in another file of the project: (its code, the verdict, the night's exit code, what its page says).
NIGHTS = {
    "a plain test that fails": ("def test_bad(): assert 1 == 2\n", "fail", 1, "more.bad: assert 1 == 2"),
    "a file that cannot be imported": (
        "import absent\n",
        "fail",
        2,
        "test_more.py: ModuleNotFoundError: No module named 'absent'",
    ),
    "Ctrl-C": (
        "def test_stopped(): raise KeyboardInterrupt\n",
        "inconclusive",
        2,
        "the session: 1 of 2 tests have not ended (interrupted: KeyboardInterrupt)",
    ),
    "pytest is killed": (
        "import os\ndef test_dies(): os.kill(os.getpid(), 9)\n",
        "inconclusive",
        -9,
        "the session: its tests were cut short, or still run",
    ),
    "pytest dies after its last word": (
        "import atexit, os\natexit.register(lambda: os._exit(7))\n",
        "fail",
        7,
        "the session: pytest ended with exit code 7",
    ),
}
BY_DAY = ("pytest is killed",)
CODES = {"pass": 0, "fail": 1, "inconclusive": 4}


CALM = "--c4-reserve=0", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"
WORDS = {"Passed": "pass", "Failed": "fail", "Inconclusive": "inconclusive"}


@pytest.fixture
def project(pytester):
    """A user's project with one host, this machine, and one good scenario; it is the working directory."""
    return made(pytester.path, GOOD)


def made(path, tests):
    """A project of these tests."""
    (path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    (path / "pytest.ini").write_text("[pytest]\nc4_fixtures = true\n")
    (path / "test_it.py").write_text(tests)
    return path


@pytest.fixture
def tried(pytester):
    """Run pytest on the project's host: exit code and output."""

    def run(*words, hosts=("--hosts=hosts.yml", *CALM)):
        done = pytester.runpytest_inprocess(*hosts, *words)
        return int(done.ret), done.stdout.str() + done.stderr.str()

    return run


def alone(*words):
    """Run pytest in a process of its own, for runs that it interrupts, or that another run takes up."""
    argv = [sys.executable, "-m", "pytest", "--hosts=hosts.yml", *CALM, *words]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def called(capsys):
    """Run the command `c4bench`: exit code and what it printed."""

    def call(*words):
        capsys.readouterr()
        return main(list(words)), capsys.readouterr().out

    return call


@pytest.fixture
def told(called):
    """What a run is called by its reports, JSON, Markdown and HTML, with their exit code and what Markdown says."""

    def ask(run):
        code, said = called("report", "--json", str(run), "--markdown", str(run / "summary.md"))
        summary, page = (run / "summary.md").read_text(), (run / "report.html").read_text()
        shown = [verdict for word, verdict in WORDS.items() if f"<h1>{word}</h1>" in page]
        return code, {json.loads(said)["outcome"], WORDS[summary.split()[1].rstrip(":")], *shown}, summary

    return ask


def junit(path):
    """The verdict in a JUnit file."""
    (suite,) = ET.parse(path).getroot()
    return suite.find("properties/property").get("value")


@pytest.mark.parametrize("case", CASES)
def test_all_say_the_same(project, tried, told, case):
    """Beside one good scenario something happens: pytest's exit code and every report give the same verdict."""
    more, verdict, reason = CASES[case]
    (project / "test_it.py").write_text(GOOD + more)
    code, said = tried("--c4-run-dir=run", "--junitxml=tests.xml")
    report_code, verdicts, _ = told(project / "run")
    assert verdicts | {junit("tests.xml")} == {verdict}, said
    assert report_code == code == CODES[verdict]
    assert [f"{one.scenario}: {one.reason}" for one in evaluate_run(project / "run").not_passed] == reason


@pytest.mark.parametrize(
    "case", [case if case in BY_DAY else pytest.param(case, marks=pytest.mark.nightly) for case in NIGHTS]
)
def test_a_night_says_the_same(project, called, told, case):
    """However badly pytest ends, the night's page, its exit code and the reports of its run give one verdict."""
    more, verdict, code, reason = NIGHTS[case]
    (project / "test_more.py").write_text(more)
    words = "--", *CALM, "-q", "."
    ended, _ = called("nightly", "--hosts=hosts.yml", "--runs=nights", "--accept", *words)
    page = (project / "nights/latest/night.md").read_text()
    assert ended == code, page
    report_code, verdicts, _ = told(project / "nights/latest")
    assert (report_code, verdicts) == (CODES[verdict], {verdict})
    assert markdown(reason) in page
    if code in CODES.values():
        assert f"night: {verdict}, 0 worse" in page
    assert (project / "nights/baseline").exists() is (code == 0)


def test_an_error_of_the_user_is_one_line(project, tried):
    """What is wrong with a call of ours is said with the line of the test, and not with how we found out."""
    (project / "test_it.py").write_text("def test_bad(measure):\n    measure('speed', 1.0, atleast=2)\n")
    code, said = tried("--c4-run-dir=run")
    assert code == 1
    shown = [line for line in said.splitlines() if "did you mean" in line and not line.startswith("FAILED")]
    wrong = "'atleast' is no limit of a measurement; did you mean at_least?"
    assert shown == [f"test_it.py:2: UsageError: {wrong}"]
    assert "ledger.py" not in said
    assert evaluate_run(project / "run").not_passed[0].reason == wrong


def test_ctrl_c_shows_the_result_so_far(project):
    """What was measured before Ctrl-C is printed, and where the report is."""
    (project / "test_it.py").write_text(f"{GOOD}def test_stopped(): raise KeyboardInterrupt\n")
    code, said = alone("--c4-run-dir=run")
    assert code == 2
    assert "pass          speed = 1 (≥ 1)\nc4bench: report run/report.html\n" in said


def test_an_interrupted_lab_shows_the_result_so_far(project, tried, capsys):
    """A lab's pytest ends with the lab: its run directory has what was measured."""
    (project / "test_it.py").write_text(GOOD.replace("unit='1'", "unit='1', clock='virtual'"))
    tried("--c4-run-dir=run")
    capsys.readouterr()
    show_so_far(RunDirectory(project / "run"))
    first, *last = capsys.readouterr().out.splitlines()
    assert first == "pass          speed = 1 (≥ 1)"
    report = f"c4bench: report {project / 'run/report.html'}"
    assert last == ["c4bench: so far scenarios: 1 passed; 1 of 1 limits met", report]


def test_junit_has_the_measurements(project, tried):
    """A CI service finds each figure of a test among the test's properties."""
    (project / "test_it.py").write_text("def test_it(measure): measure('a', 0.25, unit='s', at_most=1, host='h2')\n")
    assert tried("--junitxml=tests.xml")[0] == 0
    (suite,) = ET.parse("tests.xml").getroot()
    assert suite.find("testcase/properties/property").attrib == {"name": "a (host h2)", "value": "0.25"}


def test_a_run_without_tests_proves_nothing(project, tried, called, told):
    """Neither a choice of no test nor a night that only collects is a good one."""
    assert tried("--c4-run-dir=none", "-k", "nothing")[0] == 5
    code, verdicts, summary = told(project / "none")
    assert (code, verdicts) == (4, {"inconclusive"})
    assert "no test was run" in summary
    assert called("nightly", "--hosts=hosts.yml", "--runs=nights", "--", "--collect-only")[0] == 4


def test_the_exit_code_of_pytest_is_the_verdict(project, tried):
    """A scenario that has seen nothing makes pytest end as inconclusive, and one that failed beside it as failed."""
    dim = "from c4bench.errors import InconclusiveError\ndef test_dim(measure): raise InconclusiveError('dark')\n"
    (project / "test_it.py").write_text(GOOD + dim)
    assert tried("--c4-run-dir=dim")[0] == 4
    (project / "test_it.py").write_text(GOOD + dim + "def test_bad(): assert False\n")
    assert tried("--c4-run-dir=bad")[0] == 1
    code, said = tried("--c4-run-dir=stopped", "-x")
    assert (code, "stopping after 1 failures" in said) == (4, True)
    assert "1 of 3 tests have not ended" in evaluate_run(project / "stopped").problems[0].reason


def test_a_broken_plugin_is_a_failed_run(project, tried):
    """Pytest's internal error is in the records, with what it was."""
    (project / "conftest.py").write_text("def pytest_runtest_logfinish(): raise ValueError('plugin')\n")
    code, _ = tried("--c4-run-dir=run")
    verdict = evaluate_run(project / "run")
    assert (code, verdict.outcome) == (3, Outcome.FAIL)
    assert "pytest crashed: ValueError: plugin" in verdict.problems[0].reason


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("'gpuu', hosts=2", "'gpuu' is no capability; did you mean gpu?"),
        ("host=99", "'host' is no keyword; did you mean hosts?"),
        ("hosts=0", "hosts=0 is no number of hosts; give 1 or more"),
        *at_night(
            ("'gpu', 'warp'", "'warp' is no capability; there are reachable, python"),
            ("hosts='2'", "hosts='2' is no number of hosts; give 1 or more"),
            ("2", "'2' is no capability"),
        ),
    ],
)
def test_needs_that_nobody_has_are_refused(project, tried, mark, words):
    """A misspelt capability or keyword is an error with the nearest name, with hosts and without; nothing is run."""
    (project / "test_it.py").write_text(f"import pytest\n@pytest.mark.needs({mark})\n{GOOD}")
    for hosts in (("--hosts=hosts.yml", "--c4-run-dir=run", *CALM), ("-p", "no:cacheprovider")):
        code, said = tried(hosts=hosts)
        assert code == 2, said
        (line,) = [line for line in said.splitlines() if line.startswith("c4bench: test")]
        assert line.startswith(f"c4bench: test_it.py::test_good: needs({mark}): ")
        assert words in line
        assert "Traceback" not in said
    uncollected, cut = evaluate_run(project / "run").problems
    assert (uncollected.scenario, uncollected.outcome, uncollected.reason) == ("test_it.py", Outcome.FAIL, line)
    assert cut.reason == "no test was run (interrupted: Interrupted: 1 error during collection)"


def test_a_finished_run_is_read_only(project, tried, told):
    """It is not added to and is told so in one line; the command on its page makes a new run; a fresh one is made."""
    assert alone("--c4-run-dir=run")[0] == 0
    before = {path: path.read_bytes() for path in (project / "run").rglob("*") if path.is_file()}
    code, said = alone("--c4-run-dir=run")
    assert code == 2
    (line,) = said.strip().splitlines()
    assert "run holds a finished run, which stays as it is; leave out --c4-run-dir" in line
    assert {path: path.read_bytes() for path in (project / "run").rglob("*") if path.is_file()} == before
    _, _, summary = told(project / "run")
    (again,) = [line for line in summary.splitlines() if line.startswith("All of it again: ")]
    assert "--c4-run-dir" not in again
    pytest_, *words = shlex.split(again.split("`")[1])
    assert pytest_ == "pytest"
    assert tried(*words)[0] == 0
    assert len(RunDirectory(project / "run").timings()) == 1
    assert len(RunDirectory(project / "reports/runs/latest").timings()) == 1


def test_a_finished_run_keeps_what_failed_in_it(project, tried):
    """Resumed, it is not tried again until it passes: only what has not run is added, and the verdict stays."""
    (project / "test_it.py").write_text(GOOD + "def test_bad(): assert False\n")
    assert alone("--c4-run-dir=run")[0] == 1
    (project / "test_it.py").write_text(GOOD + "def test_bad(): pass\ndef test_new(): pass\n")
    code, said = tried("--c4-run-dir=run", "--c4-resume")
    assert "1 passed, 2 deselected" in said
    assert code == 1
    assert evaluate_run(project / "run").scenario_counts == {"pass": 2, "fail": 1}


def test_an_interrupted_run_tries_again_what_failed_after_its_test(project, tried):
    """A test whose teardown failed has not passed, and is run again with those that were not run."""
    broken = "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    raise ValueError('worn')\n"
    later = "def test_later():\n    raise KeyboardInterrupt\n"
    (project / "test_it.py").write_text(broken + GOOD.replace("measure)", "measure, broken)") + later)
    assert alone("--c4-run-dir=run")[0] == 2
    (project / "test_it.py").write_text(GOOD + "def test_later(): pass\n")
    code, said = tried("--c4-run-dir=run", "--c4-resume")
    assert code == 0, said
    assert "2 passed" in said
    assert evaluate_run(project / "run").outcome is Outcome.PASS


FATES = {
    "passes": "pass",
    "fails": "assert False",
    "is skipped": "pytest.skip('no-gpu: none')",
    "sees nothing": "raise InconclusiveError('dark')",
    "breaks": "raise RuntimeError('broken')",
    "goes home": "pytest.exit('enough', returncode=0)",
}


@settings(max_examples=examples(4, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(sorted(FATES)), st.booleans()), max_size=6))
def test_exit_code_and_reports_agree_on_any_outcomes(tmp_path_factory, monkeypatch, tried, told, fates):
    """Whatever becomes of plain tests and scenarios, pytest ends with 0 if and only if every report says pass."""
    head = "import pytest\nfrom c4bench.errors import InconclusiveError\n"
    tests = [f"def test_{i}({'run_directory' * uses}): {FATES[fate]}\n" for i, (fate, uses) in enumerate(fates)]
    project = made(tmp_path_factory.mktemp("drawn"), head + "".join(tests))
    monkeypatch.chdir(project)
    code, _ = tried("--c4-run-dir=run", "--junitxml=tests.xml")
    report_code, verdicts, _ = told(project / "run")
    (verdict,) = verdicts | {junit("tests.xml")}
    begun = [fate for fate, _ in fates[: _begun(fates)]]
    assert report_code == CODES[verdict]
    assert code == report_code or "goes home" in dict(fates) or not fates
    assert (verdict == "pass") is (code == 0) or "goes home" in dict(fates)
    assert (verdict == "fail") is not {"fails", "breaks"}.isdisjoint(begun)


def _begun(fates):
    """How many of the tests begin."""
    names = [fate for fate, _ in fates]
    return names.index("goes home") if "goes home" in names else len(names)
