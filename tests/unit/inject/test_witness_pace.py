"""Witnesses of slow and hanging ranks: what a rank's own telemetry says about the time it spends computing."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import rank_request

from c4bench.inject.witness import accelerator, base
from c4bench.inject.witness.accelerator import ComputeGap, gaps
from c4bench.model.telemetry import OpRecord

COMPUTE_S, OPERATION_S = 0.02, 0.01


def op(entered_s, finished_s, comm="c"):
    """An operation of a rank; 0 for one that is not finished."""
    return OpRecord(comm, 0, 0, "all_reduce", "ring", "float32", 1, entered_s, entered_s, finished_s)


class Rank:
    """A rank that computes and communicates in turn, on a clock that only sleeping moves."""

    def __init__(self):
        self.now_s, self.compute_s, self.ops = 1000.0, COMPUTE_S, []
        self._free_s, self.frozen, self.late_from_s = self.now_s, False, float("inf")
        self.run(1.0)

    def _next_s(self):
        """When it enters its next operation: once, after a time to be given, it computes five times as long."""
        return self._free_s + self.compute_s * (5 if self._free_s >= self.late_from_s else 1)

    def run(self, seconds):
        self.now_s += seconds
        while not self.frozen and self._next_s() <= self.now_s:
            entered_s = self._next_s()
            self.late_from_s = float("inf") if self._free_s >= self.late_from_s else self.late_from_s
            self._free_s = entered_s + OPERATION_S
            self.ops = [*self.ops[-200:], op(entered_s, self._free_s)]

    def finished(self):
        """What the telemetry file says now."""
        return [one if one.finished_s <= self.now_s else op(one.entered_s, 0.0) for one in self.ops]

    def freeze(self):
        """Stop where it is."""
        self.run(0.0)
        self.frozen = True

    def thaw(self):
        """Go on."""
        self.frozen, self._free_s = False, self.now_s

    sleep = run

    def monotonic(self):
        return self.now_s - 900.0

    def time(self):
        return self.now_s


@pytest.fixture
def rank(monkeypatch):
    rank = Rank()
    for module in (accelerator, base):
        monkeypatch.setattr(module, "time", rank)
    target = SimpleNamespace(ring=Path("ring"))
    monkeypatch.setattr(accelerator.processes, "find", lambda _: target)

    def read(path):
        assert path == target.ring
        return SimpleNamespace(ops=rank.finished())

    monkeypatch.setattr(accelerator.processes, "telemetry", read)
    return rank


def test_gaps_are_the_times_in_no_operation_of_any_communicator():
    """Overlapping operations are one busy span; an operation that has not finished lasts; short gaps do not count."""
    ops = [op(10.0, 11.0), op(10.5, 12.0, "d"), op(10.6, 10.8), op(14.0, 15.0), op(15.1, 16.0), op(18.0, 0.0)]
    assert gaps(ops) == [ComputeGap(12.0, 14.0), ComputeGap(16.0, 18.0)]
    assert gaps(ops, 12.5) == [ComputeGap(16.0, 18.0)]
    assert gaps([*ops, op(30.0, 31.0)])[-1] == ComputeGap(16.0, 18.0)
    assert gaps(list(reversed(ops))) == gaps(ops)
    assert gaps([]) == []
    assert ComputeGap(12.0, 14.5).length_s == 2.5


def test_operations_that_touch_leave_no_gap():
    """One that begins as another ends, and one that ends within a longer one, belong to the same busy span."""
    assert gaps([op(1.0, 2.0), op(2.0, 3.0), op(5.0, 6.0)]) == [ComputeGap(3.0, 5.0)]
    assert gaps([op(1.0, 4.0), op(2.0, 3.0), op(6.0, 7.0)]) == [ComputeGap(4.0, 6.0)]


def test_operations_in_a_row_during_the_fault_are_not_taken_for_its_pace(rank):
    """A second thread runs three operations in a row, before the rank has computed again: the witness waits on."""
    witness = accelerator.ComputePace(rank_request("process.slow", factor=3))
    witness.before()
    while not rank.finished()[-1].finished_s:
        rank.run(1e-3)
    rank.compute_s, onset_s = 3 * COMPUTE_S, rank.now_s
    read = rank.finished
    row = [op(onset_s + at_s, onset_s + at_s + 1e-4, "d") for at_s in (0.0, 2e-4, 4e-4)]
    rank.finished = lambda: [*read(), *row]
    evidence = witness.during(onset_s)
    assert evidence.values == {"gap_s": pytest.approx(3 * COMPUTE_S, rel=0.01)}
    assert evidence.observed_s is not None


@pytest.mark.parametrize(("slower", "seen"), [(3.0, True), (2.1, True), (1.9, False), (1.0, False)])
def test_half_of_the_slowdown_proves_it(rank, slower, seen):
    """Computing that is three times as long was asked for; what is at least twice as long shows it."""
    witness = accelerator.ComputePace(rank_request("process.slow", factor=3))
    assert witness.before() == {"gap_s": pytest.approx(COMPUTE_S)}
    rank.compute_s, onset_s = slower * COMPUTE_S, rank.now_s
    evidence = witness.during(onset_s)
    assert evidence.values == {"gap_s": pytest.approx(slower * COMPUTE_S, rel=0.01)}
    assert (evidence.observed_s is not None) == seen
    if seen:  # within the first slow gap, when it had lasted twice as long as usual
        assert onset_s + 2 * COMPUTE_S <= evidence.observed_s <= onset_s + (2 + slower) * COMPUTE_S + OPERATION_S
    assert witness.after().recovered is (None if seen else True)
    rank.compute_s = COMPUTE_S
    rank.run(0.5)
    assert witness.after() == ({"gap_s": pytest.approx(COMPUTE_S)}, True)


def test_a_rank_without_gaps_before_shows_nothing(rank):
    """Where nothing is known of its usual time, no length of a gap is evidence."""
    rank.freeze()
    rank.ops = []
    witness = accelerator.ComputePace(rank_request("process.slow", factor=3))
    assert witness.before() == {"gap_s": 0.0}
    rank.thaw()
    assert witness.during(rank.now_s).observed_s is None


def test_a_pause_of_all_is_no_usual_time(rank):
    """A rank whose peers are down before the fault is judged by the older gaps that its telemetry still has."""
    rank.freeze()
    witness = accelerator.ComputePace(rank_request("process.slow", factor=3))
    assert witness.before() == {"gap_s": pytest.approx(COMPUTE_S)}


def test_one_late_step_is_enough(rank):
    """An uneven rank is late once in a period: the first gap that is long enough is the evidence."""
    witness = accelerator.LateStep(rank_request("process.uneven", factor=5, period_s=0.5))
    assert witness.before() == {"gap_s": pytest.approx(COMPUTE_S)}
    onset_s = rank.now_s
    assert witness.during(onset_s) == ({"late": 0}, None)
    onset_s = rank.now_s
    rank.late_from_s = onset_s + 0.1
    evidence = witness.during(onset_s)
    assert evidence.values == {"late": 1}
    assert onset_s + 0.1 + 3 * COMPUTE_S <= evidence.observed_s <= onset_s + 0.1 + 5 * COMPUTE_S
    rank.run(0.2)
    assert witness.after() == ({"gap_s": pytest.approx(COMPUTE_S)}, True)


def test_a_rank_stands_still_after_five_usual_times(rank):
    """It is seen once an operation is overdue by five times the usual computing, and is over with the next one."""
    witness = accelerator.RankStandstill(rank_request("process.hang"))
    assert witness.before() == {"gap_s": pytest.approx(COMPUTE_S)}
    assert witness.during(rank.now_s).observed_s is None
    rank.freeze()
    onset_s = rank.now_s
    evidence = witness.during(onset_s)
    least_s = onset_s + 5 * COMPUTE_S - 1e-6
    assert least_s <= evidence.observed_s <= least_s + COMPUTE_S + OPERATION_S
    assert evidence.values["idle_s"] >= 5 * COMPUTE_S
    still = witness.after()
    assert still.recovered is False
    assert still.values["idle_s"] > 0.3
    rank.thaw()
    rank.run(0.05)
    assert witness.after().recovered is True


def test_a_rank_that_waits_for_others_does_not_stand_still(rank):
    """Within an operation it is its peers that are late."""
    witness = accelerator.RankStandstill(rank_request("process.hang"))
    witness.before()
    rank.freeze()
    rank.ops = [*rank.ops, op(rank.now_s - 0.001, 0.0)]
    assert witness.during(rank.now_s) == ({"idle_s": 0.0}, None)
    assert witness.after() == ({"idle_s": 0.0}, True)


def test_a_rank_that_never_computed_does_not_stand_still(rank):
    """Without a usual time, idleness is no evidence."""
    rank.freeze()
    rank.ops = [op(900.0, 901.0)]
    witness = accelerator.RankStandstill(rank_request("process.hang"))
    assert witness.before() == {"gap_s": 0.0}
    assert witness.during(rank.now_s).observed_s is None
