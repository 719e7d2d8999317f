"""Credit that is granted in vain: nothing is under way, and what granted it sends again."""

import msgspec
from c4d_telemetry import comm, conn, op, window

from c4bench.c4d.detector import Detector
from c4bench.c4d.job_view import JobView
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.telemetry import NicRecord, RankRecord

RANKS = 4
STOP_TICK, LAST_TICK = 20, 40


def standstill(unanswered, again):
    """What is said of a ring in which these connections wait for credit, and the NICs of these ranks send again."""
    detector, said = Detector(), []
    for tick in range(1, LAST_TICK):
        now_s, still, seq = tick / 10, tick > STOP_TICK, min(tick, STOP_TICK + 1)
        for rank in range(RANKS):
            entered_s, peer = seq / 10 - 0.05, (rank + 1) % RANKS
            call = op(rank, seq, entered_s, 0.0 if still else entered_s + 0.01)
            sending = conn(rank, peer, messages=min(tick, STOP_TICK), progress_s=min(tick, STOP_TICK) / 10 - 0.04)
            state = "credit" if (rank, peer) in unanswered else "data"
            counts = (max(0, tick - STOP_TICK) if rank in again else 0, 0, 0)
            detector.feed(
                window(
                    f"h{rank}",
                    tick,
                    now_s,
                    comms=[comm(RANKS)],
                    ranks=[RankRecord("job", rank, f"h{rank}", 100, "running")],
                    ops=[msgspec.structs.replace(call, awaits=((rank - 1) % RANKS,))],
                    conns=[msgspec.structs.replace(sending, state=state if still else "idle")],
                    nics=[NicRecord(f"h{rank}/0", "linkup", *counts)],
                )
            )
        said += detector.judge(now_s)
    return [(one.syndrome, one.component) for one in said]


def test_credit_that_reaches_nobody_is_the_networks():
    """A NIC that carries nothing any more was cut between two messages: no bytes of it are under way, only credit."""
    found = standstill({(0, 1), (1, 2)}, again={1, 2})
    assert found == [(Syndrome.COMMUNICATION_HANG, Component("nic", "h1/0"))]


def test_a_receiver_that_sends_nothing_again_has_granted_nothing():
    """Who waits for the credit of a rank that does not act accuses that rank and no part of the network."""
    assert standstill({(0, 1)}, again=()) == [(Syndrome.NON_COMMUNICATION_HANG, Component("rank", "job:1"))]


def test_a_way_that_is_not_known_may_be_any_between_the_same_ends():
    """Pairs of NICs under the same two switches tell the ways of one another; those of a known port are its own."""
    ways = {
        ("a", "c", 1): ("a.up", "s1", "t1", "c.in"),
        ("b", "d", 1): ("b.up", "s1", "t1", "d.in"),
        ("b", "d", 2): ("b.up", "s2", "t2", "d.in"),
        ("a", "b", 1): ("a.up", "b.in"),
    }
    crossed = JobView("job", ways, {}).crossable([("a", "c"), ("a", "c", "7"), ("b", "d", "1"), ("a", "b"), ("c", "a")])
    anywhere = ("a.up", "c.in", "s1", "s2", "t1", "t2")
    assert crossed == {
        ("a", "c"): anywhere,
        ("a", "c", "7"): anywhere,
        ("b", "d", "1"): ("b.up", "s1", "t1", "d.in"),
        ("a", "b"): ("a.up", "b.in"),
        ("c", "a"): (),
    }
