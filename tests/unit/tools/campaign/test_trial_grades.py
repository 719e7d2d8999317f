"""Grades of trials: alone, among others, wrong or silent, and what the fault cost the job."""

import json
import random

import msgspec
import pytest
from campaign_fabric import leaf_spine

from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.telemetry import OpRecord, RankRecord
from tools.campaign.figures import calibration, calibration_error, figures
from tools.campaign.grade import Answer, grades
from tools.campaign.measurable import Measurable
from tools.campaign.step_time import step_loss
from tools.campaign.trial_record import NOTHING, NamedFinding, TrialRecord
from tools.sim.windows import window_of

SLOW, LATE = Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW
NIC, CABLE, OTHER = Component("nic", "h1/0", "tx"), Component("link", "10.0.1.254"), Component("nic", "h2/0", "rx")
FABRIC = Measurable(leaf_spine())


def finding(*components, syndrome=SLOW, confidence=0.9, named_s=12.0):
    return NamedFinding(syndrome, components[0], components[1:], confidence, named_s - 0.5, named_s)


def trial(*findings, loss=0.1, stopped=False):
    return TrialRecord("t", "nic.rate", SLOW, NIC, (), {"direction": "tx"}, 10.0, 11.0, 15.0, loss, stopped, findings)


def graded(trials):
    return [grade for trial in trials for grade in grades(trial, FABRIC)]


@pytest.mark.parametrize(
    ("tried", "answer", "candidates", "resolve_s"),
    [
        (trial(finding(NIC)), Answer.RESOLVED, 1, 1.0),
        (trial(finding(CABLE, NIC)), Answer.RESOLVED, 2, 1.0),
        (trial(finding(NIC, OTHER)), Answer.AMONG, 2, None),
        (trial(finding(OTHER, NIC), finding(NIC, named_s=13.0)), Answer.RESOLVED, 1, 2.0),
        (trial(finding(Component("nic", "h1/0"))), Answer.AMONG, 1, None),
        (trial(finding(OTHER)), Answer.WRONG, 0, None),
        (trial(finding(NIC, syndrome=Syndrome.NON_COMMUNICATION_SLOW)), Answer.WRONG, 0, None),
        (trial(finding(NIC, named_s=16.0)), Answer.SILENT, 0, None),
        (trial(loss=0.021), Answer.SILENT, 0, None),
        (trial(loss=0.0, stopped=True), Answer.SILENT, 0, None),
        (trial(loss=0.019), Answer.NOT_DUE, 0, None),
    ],
)
def test_an_answer_is_graded(tried, answer, candidates, resolve_s):
    """Resolved is the right component with its side and what nothing could tell from it, and nothing else."""
    (found,) = grades(tried, FABRIC)
    assert (found.answer, found.candidates, found.resolve_s) == (answer, candidates, resolve_s)


def test_only_sure_findings_isolate_what_is_healthy():
    """A healthy NIC named without alternatives counts, one with alternatives, or at the NIC's host, does not."""
    (one,) = grades(trial(finding(NIC), finding(OTHER)), FABRIC)
    (none,) = grades(trial(finding(OTHER, CABLE), finding(Component("nic", "h1/0", "rx"))), FABRIC)
    assert (one.healthy, none.healthy) == (1, 0)


def late(rank, *findings, loss=0.1):
    """A trial of a rank that is late."""
    times = 10.0, 11.0, 15.0
    return TrialRecord("t", "process.slow", LATE, rank, (), {}, *times, loss, False, findings)


def test_each_of_two_faults_has_a_grade_of_its_own():
    """What names one fault is not held against the other, which is silent, or wrong if something else is named too."""
    rank = Component("rank", "job:3")
    named, both = finding(NIC), finding(rank, syndrome=LATE)
    for findings, answers in [
        ((named, both), [Answer.RESOLVED, Answer.RESOLVED]),
        ((named,), [Answer.RESOLVED, Answer.SILENT]),
        ((named, finding(OTHER)), [Answer.RESOLVED, Answer.WRONG]),
        ((), [Answer.SILENT, Answer.SILENT]),
    ]:
        found = grades(msgspec.structs.replace(trial(*findings), beside=(late(rank),)), FABRIC)
        assert [one.answer for one in found] == answers
        assert [one.faults for one in found] == [2, 2]
        assert sum(one.healthy for one in found) == (finding(OTHER) in findings)
        assert sum(len(one.stated) for one in found) == len(findings)


def test_whatever_is_named_without_a_fault_is_wrong():
    """No finding of a healthy job is due, however its steps grow; any is wrong, and sure ones name the healthy."""
    times = 10.0, 10.0, 15.0
    quiet = TrialRecord("t", "none", None, NOTHING, (), {}, *times, 0.5, False, ())
    (nothing,) = grades(quiet, FABRIC)
    (alarm,) = grades(msgspec.structs.replace(quiet, findings=(finding(NIC),)), FABRIC)
    assert (nothing.answer, nothing.healthy, nothing.faults) == (Answer.NOT_DUE, 0, 0)
    assert (alarm.answer, alarm.healthy) == (Answer.WRONG, 1)
    assert not alarm.stated[0].right


def job(step_s, jitter, seed, *, until_s, comms=("world",), state="running"):
    """Windows of a job whose step at time t takes `step_s(t)`, with relative jitter."""
    draw, ops = random.Random(seed), []
    for comm in comms:
        time_s, seq = 0.0, 0
        while time_s < until_s:
            ops += [OpRecord(comm, rank, seq, "all_reduce", "ring", "f4", 1, time_s, 0.0, 0.0) for rank in (0, 1)]
            time_s, seq = time_s + step_s(time_s) * draw.gauss(1, jitter), seq + 1
    ranks = (RankRecord("job", 0, "h0", 1, state),)
    return [window_of("h0", 1, 0.0, until_s, (), ranks, ops)]


@pytest.mark.parametrize("growth", [0.0, 0.05, 0.5])
def test_the_loss_of_step_time_is_found(growth):
    """A job whose steps grow by 5 % or by half loses as much, to a twentieth of it; a steady one nothing."""
    windows = job(lambda time_s: 0.15 * (1 + growth * (time_s > 4)), 0.01, 1, until_s=9.0)
    found = step_loss(windows, 4.0, 9.0)
    assert found.share == pytest.approx(growth, abs=0.005 + growth / 20)
    assert not found.stopped


def test_the_communicator_that_loses_most_counts():
    """Groups that do not wait for each other lose differently; the job's step is that of the slowest."""
    steady = job(lambda _: 0.15, 0.0, 1, until_s=9.0, comms=("a",))
    slow = job(lambda time_s: 0.15 * (1 + 0.3 * (time_s > 4)), 0.0, 1, until_s=9.0, comms=("b",))
    assert step_loss([*steady, *slow], 4.0, 9.0).share == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("state", ["exited", "killed", "stopped"])
def test_a_job_without_calls_or_without_a_process_has_stopped(state):
    """No call for 0.8 s, or a rank that does not run, is a stop whatever the steps before took."""
    assert step_loss(job(lambda _: 0.15, 0.0, 1, until_s=4.0), 4.0, 4.9).stopped
    assert not step_loss(job(lambda _: 0.15, 0.0, 1, until_s=4.0), 4.0, 4.5).stopped
    assert step_loss(job(lambda _: 0.15, 0.0, 1, until_s=4.0, state=state), 3.9, 4.0).stopped


def test_shares_are_of_trials_that_were_due():
    """Three resolved, one among, one silent and one not due: 3 of 5, with Clopper's and Pearson's interval."""
    tried = [trial(finding(NIC))] * 3 + [trial(finding(NIC, OTHER)), trial(loss=0.5), trial(loss=0.0)]
    found = figures(graded(tried))
    assert (found.trials, found.resolved.trials, found.resolved.total) == (6, 3, 5)
    assert (found.among.trials, found.wrong.trials, found.silent.trials) == (4, 0, 1)
    # Clopper and Pearson's interval for 3 of 5, from tables.
    assert found.resolved.interval[1:] == pytest.approx((0.1466, 0.9473), abs=1e-4)


def test_calibration_compares_what_was_stated_with_what_was_right():
    """Ten findings said with 0.9, of which seven name the right component, are off by 0.2; 1.0 is in the last bin."""
    said = [trial(finding(NIC))] * 7 + [trial(finding(OTHER, NIC))] * 3 + [trial(finding(NIC, confidence=0.5))]
    bins = calibration(graded(said))
    assert [(one.low, one.findings, one.right.mean) for one in bins] == [(0.4, 1, 1.0), (0.8, 10, 0.7)]
    assert calibration_error(bins) == pytest.approx(0.5)
    assert calibration(graded([trial(finding(NIC, confidence=1.0))]))[0].low == 0.8


def test_a_line_is_read_as_it_was_written():
    """What the campaign writes beside the fields of a trial does not matter to whoever reads it."""
    line = msgspec.json.encode(msgspec.structs.asdict(trial(finding(NIC))) | {"right": True, "said": ["x"]})
    assert msgspec.convert(json.loads(line), TrialRecord) == trial(finding(NIC))
