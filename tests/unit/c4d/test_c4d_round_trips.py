"""Programs that ask for few completions: what their transfers cost is known by the times at both ends."""

import random

import pytest
from c4d_telemetry import comm, conn, window
from msgspec.structs import replace
from night_cases import at_night

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Component
from c4bench.model.telemetry import ArrivalRecord, NicRecord, RankRecord

RANKS, MESSAGES, BYTES = 4, 20, 8192
HEALTHY_S, FAULTY_S = 6.0, 6.0
USUAL_NS, NS = 40_000, 1_000_000_000


class Job:
    """Ranks that all send to each other, each on a host of its own; one completion in 64 is asked for.

    `offset_ns` is how far a host's clock is ahead at a moment (s); `extra_ns` how much longer a message takes from a
    rank to another.
    """

    def __init__(self, offset_ns=lambda _host, _at_s: 0, bytes_of=lambda _rank, _peer: BYTES):
        self.detector, self.tick, self.posted = Detector(), 0, 0
        self.offset_ns, self.bytes_of = offset_ns, bytes_of
        self.sums = {(rank, peer): [0, 0, 0.0] for rank in range(RANKS) for peer in range(RANKS) if rank != peer}
        self.random = random.Random(1)

    def go(self, seconds, extra_ns=lambda _rank, _peer: 0):
        """Go on for so long; returns what is said."""
        said = []
        for _ in range(round(10 * seconds)):
            self.tick += 1
            now_s = 100 + self.tick / 10
            self.posted += MESSAGES
            for (rank, peer), sums in self.sums.items():
                sent_ns = round(now_s * NS) - NS // 20
                taken_ns = USUAL_NS + self.random.randrange(1000) + extra_ns(rank, peer)
                sums[0] += MESSAGES * (sent_ns + self.offset_ns(rank, now_s))
                sums[1] += MESSAGES * (sent_ns + taken_ns + self.offset_ns(peer, now_s))
                sums[2] += self.random.random() * 1e-4  # which of the few completions came when says little
            for rank in range(RANKS):
                self.detector.ingest_window(self._window(rank, now_s))
            said += self.detector.evaluate(now_s)
        return said

    def _window(self, rank, now_s):
        known = comm(RANKS)
        own = {"nics": [NicRecord(f"h{rank}/0", "linkup", retransmits=0)]}
        own["ranks"] = [RankRecord("job", rank, f"h{rank}", 100 + rank, "running")]
        others = [peer for peer in range(RANKS) if peer != rank]
        own["conns"] = [self._sent(rank, peer, now_s) for peer in others]
        own["arrivals"] = [self._arrived(peer, rank) for peer in others]
        return window(f"h{rank}", self.tick, now_s, comms=[known], **own)

    def _sent(self, rank, peer, now_s):
        done = self.posted // 64 * 64
        size = done * self.bytes_of(rank, peer)
        record = conn(rank, peer, messages=done, outstanding=self.posted - done + 1, progress_s=now_s, size_bytes=size)
        posted_ns, _, shared_s = self.sums[rank, peer]
        spent = {"shared_s": shared_s, "transfer_s": shared_s, "state": "idle"}
        return replace(record, posted=self.posted, posted_sum_ns=posted_ns % (1 << 64), **spent)

    def _arrived(self, rank, peer):
        ends = "world", peer, rank, f"h{rank}/0", f"h{peer}/0", 7
        return ArrivalRecord(*ends, self.posted, self.posted, self.sums[rank, peer][1] % (1 << 64))


def named(said):
    return {one.component for one in said}


def test_a_nic_that_sends_slowly_is_named_whatever_completions_say():
    """By its messages' times at both ends, which its peers' clocks do not share; others are not named."""
    job = Job(offset_ns=lambda host, _at_s: 5 * NS * host)
    assert job.go(HEALTHY_S) == []
    found = job.go(FAULTY_S, lambda rank, _peer: 4 * USUAL_NS * (rank == 1))
    assert named(found) == {Component("nic", "h1/0", "tx")}


@pytest.mark.parametrize("drift_ns", [1_000_000, *at_night(-1_000_000)])
def test_a_clock_that_runs_away_is_no_fault(drift_ns):
    """A host's clock begins to gain or lose a millisecond a second, in a span five times what a message takes."""
    job = Job(offset_ns=lambda host, at_s: round(drift_ns * max(0.0, at_s - 106)) * (host == 1))
    assert job.go(HEALTHY_S + FAULTY_S) == []


@pytest.mark.parametrize("drift_ns", [-10_000, *at_night(10_000)])
def test_a_slow_path_is_told_from_its_way_back(drift_ns):
    """Though the clocks of both ends have come apart since the job began by more than a message takes."""
    job = Job(offset_ns=lambda host, at_s: round(drift_ns * at_s) * (host == 1))
    assert job.go(3 * HEALTHY_S) == []
    found = job.go(FAULTY_S, lambda rank, peer: 4 * USUAL_NS * ((rank, peer) == (1, 2)))
    assert named(found) == {Component("path", "h1/0>h2/0")}


def test_a_receiver_may_be_a_rank_that_looks_late():
    """All that is sent to a host comes late: its NIC is suspected, or its rank."""
    job = Job()
    assert job.go(HEALTHY_S) == []
    (found,) = job.go(FAULTY_S, lambda _rank, peer: 4 * USUAL_NS * (peer == 1))
    assert found.component == Component("nic", "h1/0", "rx")
    assert Component("rank", "job:1") in found.alternatives


def test_small_messages_wait_for_programs():
    """Of a barrier's messages, beside large ones, nothing is made."""
    job = Job(bytes_of=lambda rank, peer: BYTES if {rank, peer} != {0, 1} else 8)
    assert job.go(HEALTHY_S) == []
    assert job.go(FAULTY_S, lambda rank, peer: 100 * USUAL_NS * ({rank, peer} == {0, 1})) == []
