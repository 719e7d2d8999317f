"""Credit that is granted and not used: nothing is in flight, and the receiver grants it again."""

from itertools import permutations

import msgspec
from c4d_telemetry import comm, conn, file, op, window

from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.shared_fabric import KnownPaths, SharedFabric
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.telemetry import NicRecord, RankRecord

RANKS = 4
STOP_TICK, LAST_TICK = 20, 40


def standstill(unanswered, again, ways=()):
    """What is said of a ring in which these connections wait for credit, and the NICs of these ranks send again."""
    detector, said = Detector(SharedFabric(dict(ways))), []
    for tick in range(1, LAST_TICK):
        now_s, still, seq = tick / 10, tick > STOP_TICK, min(tick, STOP_TICK + 1)
        for rank in range(RANKS):
            entered_s = seq / 10 - 0.05
            peers = {(rank + 1) % RANKS, *(peer for source, peer in unanswered if source == rank)}
            awaits = {(rank - 1) % RANKS, *(source for source, peer in unanswered if peer == rank)}
            call = op(rank, seq, entered_s, 0.0 if still else entered_s + 0.01)
            moved = min(tick, STOP_TICK)
            sending = {peer: conn(rank, peer, messages=moved, progress_s=moved / 10 - 0.04) for peer in sorted(peers)}
            states = {peer: "credit" if (rank, peer) in unanswered else "data" for peer in peers}
            counts = (max(0, tick - STOP_TICK) if rank in again else 0, 0, 0)
            detector.ingest_window(
                window(
                    f"h{rank}",
                    tick,
                    now_s,
                    comms=[comm(RANKS)],
                    ranks=[RankRecord("job", rank, f"h{rank}", 100, "running")],
                    ops=[msgspec.structs.replace(call, awaits=tuple(sorted(awaits)))],
                    conns=[
                        msgspec.structs.replace(one, state=states[peer] if still else "idle")
                        for peer, one in sending.items()
                    ],
                    nics=[NicRecord(f"h{rank}/0", "linkup", *counts)],
                )
            )
        said += detector.evaluate(now_s)
    return said


def test_credit_that_reaches_nobody_is_the_networks():
    """A NIC that carries nothing any more was cut between two messages: no bytes of it are under way, only credit."""
    (found,) = standstill({(0, 1), (1, 2)}, again={1, 2})
    assert (found.syndrome, found.component) == (Syndrome.COMMUNICATION_HANG, Component("nic", "h1/0"))


def test_unused_credit_both_ways_may_be_a_cables():
    """Of credit nobody knows the way: a link may have had to carry all that one NIC sent or was sent, which is well."""
    ways = {(f"h{a}/0", f"h{b}/0", 1): (f"h{a}.up", f"h{a} side", f"h{b}.in") for a, b in permutations(range(RANKS), 2)}
    (found,) = standstill({(0, 1), (1, 0), (1, 2), (2, 1)}, again={0, 1, 2}, ways=ways)
    assert found.component == Component("nic", "h1/0")
    assert Component("link", "h1 side") in found.alternatives


def test_a_receiver_that_sends_nothing_again_has_granted_nothing():
    """Who waits for the credit of a rank that does not act accuses that rank and no part of the network."""
    (found,) = standstill({(0, 1)}, again=())
    assert (found.syndrome, found.component) == (Syndrome.NON_COMMUNICATION_HANG, Component("rank", "job:1"))


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


def test_links_that_a_way_only_may_cross_are_asked_for_where_it_is_bad():
    """A connection whose way is not known is sure to cross its NICs' own links, and may cross more where it is bad."""
    ways = KnownPaths({("h0/0", "h1/0", 49152): ("a.up", "x", "b.in"), ("h1/0", "h0/0", 1): ("b.up", "y", "a.in")})
    job = JobView("job", ways)
    job.add_comm(comm())
    file(job, 1.0, conns=[conn(0, 1), conn(1, 0)])
    known, unknown = ("h0/0", "h1/0", "49152"), ("h1/0", "h0/0", "49152")
    sure = {known: ("a.up", "x", "b.in"), unknown: ("b.up", "a.in")}
    assert job.links() == {**sure, unknown: ()}
    assert job.suspect_links([]) == job.suspect_links([known]) == sure
    assert job.suspect_links([known, unknown]) == {**sure, unknown: ("a.in", "b.up", "y")}
