"""Damaged telemetry is dropped and counted; it neither crashes the detector nor makes it speak."""

import math

import msgspec
import pytest
from c4d_telemetry import MIX, comm, conn, file, op, remade, window
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.record_validator import RecordValidator
from c4bench.model.telemetry import ArrivalRecord
from tools.sim.job import simulate
from tools.sim.model import SimJob


def test_duplicate_and_reordered_windows_are_dropped():
    """A window is taken once, and never after a newer one of its host."""
    intake = RecordValidator()
    first, second = window("h0", 1, 0.1), window("h0", 2, 0.2)
    assert [intake.admit(w) for w in (first, second, second, first)] == [True, True, False, False]
    assert intake.dropped["h0"].total() == 2


def test_restarted_agent_is_believed():
    """An agent that counts from zero again but whose time goes on is not a duplicate."""
    intake = RecordValidator()
    assert intake.admit(window("h0", 900, 90.0))
    assert intake.admit(window("h0", 1, 91.0))
    assert not intake.dropped


def test_a_state_may_end_before_the_window_that_holds_it():
    """A process that computes says later that a transfer had ended: how long it was guessed to last is no counter."""
    detector = Detector()
    under_way = msgspec.structs.replace(conn(0, 1, transfer_s=0.1, outstanding=1), state="transfer", shared_s=0.0)
    detector.ingest_window(window("h0", 1, 0.1, comms=[comm()], conns=[under_way]))
    detector.ingest_window(window("h0", 2, 0.2, comms=[comm()], conns=[conn(0, 1, messages=1, transfer_s=0.02)]))
    assert detector.dropped == 0


def test_torn_times_are_dropped():
    """A window without a duration, or with a time that is no number, is not believed."""
    intake = RecordValidator()
    torn = msgspec.structs.replace(window("h0", 1, 0.1), end_s=math.nan)
    empty = msgspec.structs.replace(window("h0", 1, 0.1), start_s=0.1)
    assert not intake.admit(torn)
    assert not intake.admit(empty)
    assert intake.dropped["h0"].total() == 2


def test_counters_that_run_backwards_are_dropped():
    """A cumulative counter cannot fall: the record is dropped, and the rest of its window is used."""
    detector = Detector()
    detector.ingest_window(window("h0", 1, 0.1, comms=[comm()], conns=[conn(0, 1, messages=9, transfer_s=1.0)]))
    detector.ingest_window(window("h0", 2, 0.2, conns=[conn(0, 1, messages=5, transfer_s=2.0)]))
    assert detector.dropped == 1


def test_operation_that_ends_before_it_begins_is_dropped():
    """Times of one operation are in order or the record is torn."""
    detector = Detector()
    detector.ingest_window(window("h0", 1, 5.1, comms=[comm()], ops=[op(0, 0, 5.0, 4.0)]))
    assert detector.dropped == 1


def test_records_of_an_unknown_communicator_are_ignored():
    """Records whose communicator was never introduced (a truncated window) say nothing."""
    detector = Detector()
    detector.ingest_window(window("h0", 1, 5.1, ops=[op(0, 0, 5.0)], conns=[conn(0, 1)]))
    assert detector.evaluate(60.0) == []


_DAMAGE = st.sampled_from(["drop", "repeat", "swap", "truncate", "rewind", "keep", "keep", "keep"])


def _damaged(windows, plan):
    held = None
    for damage, one in zip(plan, windows, strict=False):
        if damage == "drop":
            continue
        if damage == "swap" and held is None:
            held = one
            continue
        if damage == "truncate":
            yield remade(one, ops=one.ops[:1], conns=one.conns[:3])
        elif damage == "rewind":
            back = tuple(msgspec.structs.replace(c, messages=c.messages // 2) for c in one.conns)
            yield remade(one, conns=back)
        else:
            yield one
        if damage == "repeat":
            yield one
        if held is not None:
            yield held
            held = None


@settings(max_examples=examples(5, 15), deadline=None)
@given(st.integers(0, 1000), st.lists(_DAMAGE, min_size=40, max_size=40))
def test_damage_makes_no_finding(seed, plan):
    """However a healthy job's windows are lost, doubled, swapped, cut or rewound, nobody is blamed."""
    detector = Detector()
    found = []
    for tick in simulate(SimJob(4, MIX, seed=seed), (), 4.0):
        count = 4
        offset = round(tick.time_s * 10) % 10 * count
        for one in _damaged(tick.windows, plan[offset : offset + count]):
            detector.ingest_window(one)
        found += detector.evaluate(tick.time_s)
    assert found == []


@pytest.mark.parametrize("change", [{"size_bytes": 4096}, {"kind": "all_gather"}])
def test_the_period_is_that_of_like_operations(change):
    """Where operations of two kinds or sizes alternate unevenly, a period is from one to the next of its like."""
    job = JobView("job")
    job.add_comm(comm())
    for seq in range(40):
        turn, second = divmod(seq, 2)
        began_s = 100.0 + turn + 0.3 * second
        done = [op(rank, seq, began_s, began_s + 0.1) for rank in range(2)]
        done = [msgspec.structs.replace(one, **change) for one in done] if second else done
        file(job, began_s + 0.2, ops=done)
    assert job.period_s() == pytest.approx(1.0)
    assert job.span_s() == pytest.approx(1.0)


def test_the_sums_of_a_connection_are_new_until_they_have_been_taken():
    """Who follows both ends reads the sums of each once; windows without a new message have none."""
    job, taken = JobView("job"), []
    job.add_comm(comm())
    for sequence, (posted, sum_ns) in enumerate(((3, 30), (0, 0), (4, 2**64 - 1))):
        sent = msgspec.structs.replace(conn(0, 1, messages=3), posted=posted, posted_sum_ns=sum_ns)
        end = ArrivalRecord("world", 1, 0, "h0/0", "h1/0", 7, 3, posted, sum_ns)
        file(job, 1.0 + sequence, conns=(sent,), arrivals=(end,))
        both = job.conns.take_new(), job.arrivals.take_new()
        assert both[0].pairs.tolist() == both[1].pairs.tolist()
        taken.append([(sums.counts.tolist(), sums.sums_ns.tolist()) for sums in both])
    assert taken == [[([3], [30])] * 2, [([], [])] * 2, [([4], [2**64 - 1])] * 2]
