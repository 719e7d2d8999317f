import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.errors import UsageError
from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger, RunDirectory
from c4bench.record.provenance import collect
from c4bench.report import conclude, evaluate_run, render
from c4bench.report.markdown import summary


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "r")


def verdict(run):
    judged = evaluate_run(run.path)
    return judged.outcome, judged.exit_code


def test_all_limits_held_passes(run):
    """A run whose limits all held passes with exit code 0; what has no limit does not matter."""
    ledger = Ledger(run, "s")
    ledger.measure("a", 1.0, "1", at_least=1.0)
    ledger.measure("b", 5.0, "1")
    assert verdict(run) == (Outcome.PASS, 0)


@pytest.mark.parametrize("clock", list(Clock))
def test_one_miss_fails(run, clock):
    """One miss on any clock fails the run with exit code 1, whatever else is inconclusive."""
    ledger = Ledger(run, "s")
    ledger.measure("a", 1.0, "1", at_least=1.0)
    ledger.measure("b", 2.0, "s", at_most=1.0, clock=clock)
    ledger.measure("c", math.nan, "s", at_most=1.0)
    assert verdict(run) == (Outcome.FAIL, 1)


def test_one_unknown_is_inconclusive(run):
    """Without a miss, one measurement that says nothing makes the run inconclusive with exit code 4."""
    ledger = Ledger(run, "s")
    ledger.measure("a", 1.0, "1", at_least=1.0)
    ledger.measure("c", math.nan, "s", at_most=1.0)
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)


def test_an_empty_run_proves_nothing(run):
    """A run in which nothing was held against a limit is inconclusive, never passed."""
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)
    Ledger(run, "s").measure("b", 5.0, "1")
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS])
def test_scenario_endings_count(run, outcome):
    """A scenario that failed a check without measuring it decides the verdict too."""
    if outcome is not Outcome.PASS:
        Ledger(run, "s").measure("a", 1.0, "1", at_least=1.0)
    run.event(0.5, "alarm", about="h1/0")
    run.finish_scenario("s", outcome, "wrong component")
    assert evaluate_run(run.path).outcome is outcome


@pytest.mark.parametrize(
    ("passed", "skipped", "outcome", "code"),
    [
        (0, 3, Outcome.INCONCLUSIVE, 4),
        (1, 17, Outcome.INCONCLUSIVE, 4),
        (2, 2, Outcome.PASS, 0),
        (3, 1, Outcome.PASS, 0),
    ],
)
def test_skips_are_a_result(run, passed, skipped, outcome, code):
    """Skips are counted with their reasons, and a run that skipped more than half of its scenarios does not pass."""
    Ledger(run, "s").measure("a", 1.0, "1", at_least=1.0)
    for number in range(passed):
        run.finish_scenario(f"p{number}", Outcome.PASS)
    for number in range(skipped):
        run.finish_scenario(f"s{number}", Outcome.SKIP, "no-rdma: 0 of 2" if number else "no-gpu: none")
    verdict = evaluate_run(run.path)
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)
    assert verdict.scenario_counts == {word: n for word, n in (("pass", passed), ("skip", skipped)) if n}
    assert verdict.skips == {word: n for word, n in (("no-rdma: 0 of 2", skipped - 1), ("no-gpu: none", 1)) if n}


def test_a_scenario_that_ran_after_all_is_not_skipped(run):
    """Of several sessions of one run, a skip does not count beside a session in which the scenario ran; a miss does."""
    for number in range(3):
        run.finish_scenario(f"s{number}", Outcome.SKIP, "broken-host: h2")
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)
    for number in range(2):
        run.finish_scenario(f"s{number}", Outcome.PASS)
    run.finish_scenario("s2", Outcome.SKIP, "broken-host: h2")
    assert verdict(run) == (Outcome.PASS, 0)
    assert evaluate_run(run.path).scenario_counts == {"pass": 2, "skip": 1}
    run.finish_scenario("s0", Outcome.FAIL, "late")
    assert verdict(run) == (Outcome.FAIL, 1)


def test_a_miss_outweighs_skips(run):
    """A run that missed a limit fails however many scenarios it skipped."""
    Ledger(run, "s").measure("a", 0.0, "1", at_least=1.0)
    for number in range(5):
        run.finish_scenario(f"s{number}", Outcome.SKIP, "no-rdma: 0 of 2")
    assert verdict(run) == (Outcome.FAIL, 1)


def test_edited_values_are_judged_again(run):
    """A verdict follows value and limit, not the outcome that stands in the file, and says that they differ."""
    Ledger(run, "s").measure("a", 1.0, "1", at_least=0.9)
    path = run.path / "measurements.jsonl"
    path.write_text(path.read_text().replace('"value":1.0', '"value":0.5'))
    judged = evaluate_run(run.path)
    assert (judged.outcome, judged.changed) == (Outcome.FAIL, 1)
    assert judged.count(Outcome.FAIL) == 1


def test_inconclusive_stays_so(run):
    """What was inconclusive when taken is not turned into a pass by a value that happens to hold the limit."""
    Ledger(run, "s").measure("a", 1.0, "1", at_least=0.9)
    path = run.path / "measurements.jsonl"
    path.write_text(path.read_text().replace('"pass"', '"inconclusive"'))
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)


def test_damaged_endings_are_reported(run):
    """A scenario event without an outcome is a usage error that names the file."""
    run.event(0.0, "scenario", scenario="s")
    with pytest.raises(UsageError, match=r"events\.jsonl"):
        evaluate_run(run.path)


ENDINGS = st.tuples(st.sampled_from(["pass", "fail", "inconclusive", "skip"]), st.booleans())
SESSIONS = st.sampled_from(["none", "complete", "cut short", "interrupted", "crashed"])
PROBLEMS = st.sampled_from(["", "", "", "fail"])


@settings(max_examples=examples(15, 300))
@given(st.lists(ENDINGS, max_size=6), st.lists(st.floats(0, 2), max_size=3), SESSIONS, PROBLEMS)
def test_every_report_gives_the_verdict_of_the_records(tmp_path_factory, endings, values, session, problem):
    """Whatever is recorded, all reports and the exit code agree, and what did not pass is never in a passed run."""
    run = RunDirectory.create(tmp_path_factory.mktemp("drawn"), "r")
    run.write_provenance(
        collect(name="r", started_at="", command=["pytest"], seed=1, backend="", topology="", clock="virtual")
    )
    record(run, endings, values, session, problem)
    judged = evaluate_run(run.path)
    missed = any(value > 1 for value in values)
    outcomes = {outcome for outcome, _ in endings} | ({"fail"} if missed or problem or session == "crashed" else set())
    unsure = session in {"cut short", "interrupted"} or "inconclusive" in outcomes
    if "fail" in outcomes or unsure:
        assert judged.outcome == ("fail" if "fail" in outcomes else "inconclusive")
    assert judged.exit_code == {"pass": 0, "fail": 1, "inconclusive": 4}[judged.outcome]
    page = render(run.path).read_text()
    title = {"pass": "Passed", "fail": "Failed", "inconclusive": "Inconclusive"}[judged.outcome]
    assert f"<h1>{title}</h1>" in page
    assert summary(run, judged).startswith(f"## {title}: ")
    assert conclude(run, 0) == judged.exit_code
    assert conclude(run, 7) == 7
    assert evaluate_run(run.path).outcome is not Outcome.PASS


def record(run, endings, values, session, problem):
    """Write what a session would."""
    if session != "none":
        run.begin_session()
    for number, (outcome, plain) in enumerate(endings):
        run.finish_scenario(f"s{number}", Outcome(outcome), plain=plain)
    for value in values:
        Ledger(run, "m").measure("a", value, "1", at_most=1.0)
    if problem:
        run.note_problem("test_x.py", Outcome(problem), "no module")
    if session in {"complete", "interrupted", "crashed"}:
        ended = {"complete": Outcome.PASS, "interrupted": Outcome.INCONCLUSIVE, "crashed": Outcome.FAIL}
        run.end_session(ended[session])


def test_only_the_last_session_must_have_come_to_its_end(run):
    """A run that was interrupted and went on to its end is as good as any; one in which hosts were lost is not."""
    run.finish_scenario("s", Outcome.PASS)
    run.begin_session()
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)
    run.begin_session()
    run.end_session()
    assert (verdict(run), run.finished) == ((Outcome.PASS, 0), True)
    assert conclude(run, 3) == 3
    assert (verdict(run), run.finished) == ((Outcome.INCONCLUSIVE, 4), False)


def test_plain_tests_do_not_make_up_for_skips(run):
    """Tests that use no hosts pass or fail a run, and do not hide that most scenarios were skipped."""
    for number in range(9):
        run.finish_scenario(f"p{number}", Outcome.PASS, plain=True)
    assert verdict(run) == (Outcome.PASS, 0)
    run.finish_scenario("s", Outcome.SKIP, "no-gpu: none")
    assert verdict(run) == (Outcome.INCONCLUSIVE, 4)
    run.finish_scenario("p", Outcome.FAIL, plain=True)
    assert verdict(run) == (Outcome.FAIL, 1)
