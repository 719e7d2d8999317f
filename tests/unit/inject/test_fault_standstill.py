"""The witness of a rank that stands still, on operations and a clock of the tests' own."""

from types import SimpleNamespace

import pytest
from fakes import rank_request

from c4bench.inject.witness import accelerator
from c4bench.inject.witness.accelerator import RankStandstill
from c4bench.model.telemetry import OpRecord

USUAL_S, BUSY_S = 0.1, 0.2


class World:
    """A rank that computes for `USUAL_S` and is in an operation for `BUSY_S`, until `stands_s`; sleeping is free."""

    def __init__(self):
        self.now_s, self.stands_s, self.goes_on_s = 1000.0, float("inf"), float("inf")
        self.waits_from_s = float("inf")

    def time(self):
        return self.now_s

    def sleep(self, duration_s):
        self.now_s += duration_s

    def ops(self, _):
        """What the ring would hold now: operations entered so far, the newest perhaps not finished."""
        found, entered_s = [], 990.0
        while entered_s <= self.now_s:
            finished_s = entered_s + BUSY_S
            if finished_s > self.now_s or entered_s >= self.waits_from_s:
                finished_s = 0.0
            found.append(
                OpRecord("a", 0, len(found), "all_reduce", "ring", "float32", 4, entered_s, entered_s, finished_s)
            )
            if not finished_s:
                break
            entered_s = finished_s + USUAL_S
            if finished_s >= self.stands_s:
                entered_s = max(entered_s, self.goes_on_s)
        return SimpleNamespace(ops=found)


@pytest.fixture
def world(monkeypatch):
    made = World()
    clock = SimpleNamespace(time=made.time, monotonic=made.time, sleep=made.sleep)
    monkeypatch.setattr(accelerator, "time", clock)
    monkeypatch.setattr("c4bench.inject.witness.base.time", clock)
    monkeypatch.setattr(accelerator.processes, "telemetry", made.ops)
    monkeypatch.setattr(accelerator.processes, "find", lambda _: SimpleNamespace(ring=None))
    return made


@pytest.fixture
def witness():
    return RankStandstill(rank_request("process.hang"))


def test_a_rank_that_stands_is_seen_when_its_next_operation_is_long_overdue(world, witness):
    """The evidence is five times its usual computing after it left its last operation, and no earlier."""
    assert witness.before()["gap_s"] == pytest.approx(USUAL_S)
    world.stands_s = onset_s = world.now_s
    evidence = witness.during(onset_s)
    left_s = max(op.finished_s for op in world.ops(None).ops)
    assert evidence.observed_s == pytest.approx(max(onset_s, left_s) + 5 * USUAL_S)
    assert evidence.values["idle_s"] >= 5 * USUAL_S
    world.goes_on_s = world.now_s + 0.1
    assert witness.after().recovered is True


def test_a_rank_in_health_is_not_seen(world, witness):
    """It computes as long as ever, and enters the next operation."""
    witness.before()
    evidence = witness.during(world.now_s)
    assert evidence.observed_s is None
    assert evidence.values["idle_s"] < 5 * USUAL_S
    assert witness.after().recovered is True


def test_a_rank_that_is_kept_waiting_does_not_stand(world, witness):
    """It is in an operation that its peers do not end: that is not its own standing still."""
    witness.before()
    world.waits_from_s = onset_s = world.now_s
    evidence = witness.during(onset_s)
    assert evidence.observed_s is None
    assert evidence.values == {"idle_s": 0.0}


def test_one_that_goes_on_standing_has_not_recovered(world, witness):
    """After the fault it must enter an operation."""
    witness.before()
    world.stands_s = world.now_s
    witness.during(world.now_s)
    assert witness.after().recovered is False


def test_a_rank_that_was_never_seen_computing_shows_nothing(world, monkeypatch, witness):
    """Without a usual time nothing is long."""
    monkeypatch.setattr(accelerator.processes, "telemetry", lambda _: SimpleNamespace(ops=[]))
    assert witness.before() == {"gap_s": 0.0}
    assert witness.during(world.now_s).observed_s is None
