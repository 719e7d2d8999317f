"""A host that crashes takes the other ranks with it: it is named, and not the first of its victims."""

import pytest
from c4d_telemetry import comm, conn, op, window

from c4bench.c4d.detector import Detector, TelemetryStore
from c4bench.c4d.hang.process_exits import exit_findings
from c4bench.c4d.observe.record_validator import RecordValidator
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.recording import FailureReported
from c4bench.model.telemetry import Failure, NicRecord, RankRecord

RANKS = 6
CRASH_TICK, ENDS_TICK, LAST_TICK = 20, 23, 29


def records(rank, tick, killed):
    """What a host says at a tenth of a second: its rank ends by an error three ticks after the crash, unless killed."""
    ended = tick >= ENDS_TICK
    code = -9 if rank == killed else 1
    state = ("killed" if rank == killed else "exited") if ended else "running"
    seq = min(tick, CRASH_TICK)
    entered_s = seq / 10 - 0.05
    finished_s = 0.0 if tick >= CRASH_TICK else entered_s + 0.01
    return {
        "comms": [comm(RANKS)],
        "ranks": [RankRecord("job", rank, f"h{rank}", 100, state, code if ended else None)],
        "ops": [op(rank, seq, entered_s, finished_s)],
    }


def found(silent, killed=None):
    """What is found when these hosts fall silent at the crash."""
    detector, said = Detector(), []
    for tick in range(1, LAST_TICK):
        for rank in range(RANKS):
            if tick < CRASH_TICK or rank not in silent:
                detector.ingest_window(window(f"h{rank}", tick, tick / 10, **records(rank, tick, killed)))
        said += detector.evaluate(tick / 10)
    return said


def test_the_silent_host_is_named_and_not_its_victims():
    """Five ranks exit with errors after the sixth one's host has gone; it alone is to blame."""
    (diagnosis,) = found({2})
    assert (diagnosis.syndrome, diagnosis.component) == (Syndrome.COMMUNICATION_HANG, Component("host", "h2"))
    assert diagnosis.cause is Cause.HOST_SILENT
    assert diagnosis.onset_s == pytest.approx(1.9, abs=0.11)


def test_a_killed_rank_is_no_victim_of_a_silent_host():
    """A rank that a signal ended has its own cause, whatever other hosts are silent."""
    named = [diagnosis.component for diagnosis in found({2}, killed=4)]
    assert named[0] == Component("rank", "job:4")


def test_when_many_are_silent_none_is_named_for_it():
    """Then it is the way to the master that is broken."""
    assert not any(diagnosis.component.kind == "host" for diagnosis in found({1, 2, 3}))


def unreachable(
    words, first_to_end=(), again=(), under_way=(), ways=None, status="RETRY_EXC_ERR", ahead=3, said=ENDS_TICK
):
    """The findings when all ranks end within a window, except some that end `ahead` of it by so many windows.

    Failures are reported at tick `said`.
    """
    detector, diagnoses = Detector(SharedFabric(ways)), []
    pairs = [(rank, peer) for rank in range(RANKS) for peer in range(RANKS) if rank != peer]
    for tick in range(1, LAST_TICK):
        if tick == said:
            for rank, peer in words:
                failure = Failure(rank, "no acknowledgement", status, peer)
                detector.ingest(FailureReported(tick / 10, "job", "world", failure))
        for rank in range(RANKS):
            told = records(rank, tick, None)
            if rank in first_to_end and tick >= ENDS_TICK - ahead:
                told["ranks"] = [RankRecord("job", rank, f"h{rank}", 100, "exited", 1)]
            sent = min(tick, CRASH_TICK)
            conns = [
                conn(a, b, messages=sent, progress_s=sent / 10, outstanding=int((a, b) in under_way))
                for a, b in pairs
                if a == rank
            ]
            counts = (tick, 0, tick) if rank in again else (0, 0, 0)
            nics = [NicRecord(f"h{rank}/0", "linkup", *counts)]
            detector.ingest_window(window(f"h{rank}", tick, tick / 10, **told, conns=conns, nics=nics))
        diagnoses += detector.evaluate(tick / 10)
    return diagnoses


def test_who_could_not_be_reached_is_named_and_not_who_said_so():
    """Three ranks got no acknowledgement from a fourth before the job ended as a whole: its NIC, on whichever side."""
    (diagnosis,) = unreachable([(0, 2), (1, 2), (5, 2)])
    assert (diagnosis.syndrome, diagnosis.component) == (
        Syndrome.COMMUNICATION_HANG,
        Component("nic", "h2/0"),
    )


@pytest.mark.parametrize("status", ["LOC_QP_OP_ERR", "WR_FLUSH_ERR"])
def test_who_told_of_a_failure_is_among_the_first_whatever_windows_show(status):
    """A NIC refuses its rank's work, and all end at once: windows show some of them two cadences before that rank."""
    words, others = [(5, 4)], (0, 1, 2, 3)
    (diagnosis,) = unreachable(words, first_to_end=others, status=status, ahead=2, said=ENDS_TICK - 2)
    assert (diagnosis.syndrome, diagnosis.component) == (Syndrome.COMMUNICATION_HANG, Component("nic", "h5/0"))


def test_credit_that_nobody_acknowledged_tells_no_side():
    """One rank's word leaves both ends of a way, and either of these may be dead as a whole."""
    (diagnosis,) = unreachable([(0, 2)])
    assert set(diagnosis.suspects) == {Component("nic", "h0/0"), Component("nic", "h2/0")}


def test_bytes_and_credit_that_nobody_acknowledged_are_one_fault():
    """A host cut off between two messages got bytes from one rank and credit from another; it acknowledged neither."""
    (diagnosis,) = unreachable([(1, 2), (3, 2)], under_way={(1, 2)})
    assert (diagnosis.syndrome, diagnosis.component) == (Syndrome.COMMUNICATION_HANG, Component("nic", "h2/0"))


def test_bytes_and_credit_cross_the_same_link():
    """Of bytes the way is known, of credit only what it may be; the link that both have in common is to blame."""
    ways = {
        ("h1/0", "h2/0", 49152): ("h1.up", "s1", "t1", "h2.in"),
        ("h4/0", "h3/0", 49152): ("h4.up", "s2", "t2", "h3.in"),
        ("h4/0", "h3/0", 49153): ("h4.up", "s1", "t1", "h3.in"),
    }
    (diagnosis,) = unreachable([(1, 2), (4, 3)], under_way={(1, 2)}, ways=ways)
    assert {diagnosis.component, *diagnosis.alternatives} == {Component("link", "s1"), Component("link", "t1")}


def test_credit_that_came_again_and_again_missed_its_acknowledgement():
    """Rank 0 granted credit to rank 2, whose NIC counts it again and again: what rank 2 sends back does not arrive."""
    (diagnosis,) = unreachable([(0, 2)], again=(0, 2))
    assert diagnosis.syndrome == Syndrome.COMMUNICATION_HANG
    assert {one.name for one in diagnosis.suspects} == {"h2/0", "h0/0"}


@pytest.mark.parametrize("ahead", [2, 3])
def test_who_has_ended_answers_nobody(ahead):
    """Acknowledgements that a dead rank owes accuse neither the network nor the rank that missed them."""
    named = [d.component for d in unreachable([(0, 2), (1, 2), (5, 2)], first_to_end=(2,), ahead=ahead)]
    assert named[0] == Component("rank", "job:2")


@pytest.mark.parametrize("killed", [None, 4])
def test_once_a_cause_is_known_only_a_signal_is_one_more(killed):
    """Ranks that exit with an error then are its victims, whichever seems to be first; a killed one is not."""
    ledger = TelemetryStore(RecordValidator())
    for tick in range(1, LAST_TICK):
        for rank in range(RANKS):
            ledger.ingest(window(f"h{rank}", tick, tick / 10, **records(rank, tick, killed)))
        ledger.flush()
        ledger.clocks.observe(tick / 10)
    job = ledger.jobs["job"]
    assert exit_findings(job, ledger.clocks)
    named = [verdict.component for verdict in exit_findings(job, ledger.clocks, known=True)]
    assert named == ([] if killed is None else [Component("rank", "job:4")])
