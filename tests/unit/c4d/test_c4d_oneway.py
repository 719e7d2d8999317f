"""One-way delays from two ends' sums, with clocks that do not agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.c4d.observe.connections import Pairs, Sums
from c4bench.c4d.observe.one_way_delays import OneWayDelays

NICS = ("h0/0", "h1/0", "h2/0", "h3/0")
WRAP = 1 << 64


class Traffic:
    """All-to-all messages with a delay for each source and destination, seen through each host's own clock."""

    def __init__(self, offsets_ns):
        self.offsets_ns = offsets_ns
        self.sums = {}
        self.now_ns = 1_767_225_600_000_000_000

    def step(self, delay_ns):
        self.now_ns += 10_000_000
        for source in NICS:
            for destination in NICS:
                if source != destination:
                    count, posted, arrived = self.sums.get((source, destination), (0, 0, 0))
                    at = self.now_ns + delay_ns(source, destination)
                    self.sums[source, destination] = (
                        count + 1,
                        (posted + self.now_ns + self.offsets_ns[source]) % WRAP,
                        (arrived + at + self.offsets_ns[destination]) % WRAP,
                    )

    def snapshots(self, pairs, comm="c"):
        """What both ends say now."""
        both = [], []
        for (source, destination), (count, *sums_ns) in self.sums.items():
            row = pairs.rows.open((comm, source, destination, 1))
            for end, sum_ns in zip(both, sums_ns, strict=True):
                end.append((row, count, sum_ns))
        return tuple(map(ends, both))


def ends(snapshots):
    """Snapshots of many ends, as columns."""
    rows, counts, sums_ns = zip(*snapshots, strict=True) if snapshots else ((), (), ())
    return Sums(np.array(rows, np.int64), np.array(counts, np.int64), np.array(sums_ns, np.uint64))


def follow(offsets_ns=(0, 0, 0, 0)):
    """Traffic, and who follows it."""
    pairs = Pairs()
    return Traffic(dict(zip(NICS, offsets_ns, strict=True))), pairs, OneWayDelays(pairs)


@pytest.mark.parametrize("side", ["rx", "tx"])
@settings(max_examples=30, deadline=None)
@given(
    nic=st.sampled_from(NICS),
    offsets=st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4),
    growth_ns=st.integers(20_000, 10**8),
)
def test_side_is_told_whatever_the_clocks_say(side, nic, offsets, growth_ns):
    """Delays that grow on one side of a NIC name that side, for any offsets between the hosts' clocks."""
    traffic, pairs, oneway = follow(offsets)
    for step in range(20):
        slow = step >= 10

        def delay_ns(source, destination, slow=slow):
            hit = destination if side == "rx" else source
            return 100_000 + (growth_ns if slow and hit == nic else 0)

        traffic.step(delay_ns)
        oneway.add(*traffic.snapshots(pairs), now_s=float(step))
    assert oneway.side(nic, 9.5) == side


def test_side_is_told_where_the_other_waits_for_acknowledgements():
    """Of what a NIC receives every other message waits for an acknowledgement that it sends late: half the delay."""
    traffic, pairs, oneway = follow()
    for step in range(20):

        def delay_ns(source, destination, slow=step >= 10):
            sent, received = source == "h0/0", destination == "h0/0"
            return 100_000 + slow * (1_700_000 * sent + 950_000 * received)

        traffic.step(delay_ns)
        oneway.add(*traffic.snapshots(pairs), now_s=float(step))
    assert oneway.side("h0/0", 9.5) == "tx"


def test_unmatched_counters_say_nothing():
    """Without two snapshots in which both ends have counted equally many messages there is no verdict."""
    traffic, pairs, oneway = follow()
    for step in range(10):
        traffic.step(lambda *_: 1000)
        posted, _ = traffic.snapshots(pairs)
        oneway.add(posted, ends([]), now_s=float(step))
    assert oneway.side("h1/0", 5.0) == ""


def test_delays_that_grow_everywhere_blame_no_side():
    """A NIC whose delays grow both ways, as a busy fabric's do, is not pinned to one side."""
    traffic, pairs, oneway = follow()
    for step in range(20):
        traffic.step(lambda *_, step=step: 1000 if step < 10 else 500_000)
        oneway.add(*traffic.snapshots(pairs), now_s=float(step))
    assert oneway.side("h1/0", 9.5) == ""


def test_only_new_counters_need_to_be_added():
    """Ends that have not moved may be left out: the side is told as if all had been added each time."""
    traffic, pairs, oneway = follow()
    held = ends([])
    for step in range(20):
        traffic.step(lambda _, destination, step=step: 1000 + 50_000 * (step >= 10 and destination == "h2/0"))
        posted, arrived = traffic.snapshots(pairs)
        oneway.add(posted, arrived if step % 2 else held, float(step))
    assert oneway.side("h2/0", 9.5) == "rx"


def test_a_communicator_that_ends_leaves_its_delays_to_no_other():
    """Connections of a later communicator begin without delays, though they have the same NICs and counts."""
    _, pairs, oneway = follow()
    for name in ("c", "d"):
        traffic = Traffic(dict.fromkeys(NICS, 0))
        for step in range(10 if name == "c" else 25):
            traffic.step(lambda _, destination, name=name: 1000 + 50_000 * (name == "d" and destination == "h2/0"))
            oneway.add(*traffic.snapshots(pairs, name), now_s=float(step + 10 * (name == "d")))
        if name == "c":
            oneway.forget({"c"})
    assert oneway.side("h2/0", 9.5) == ""


@pytest.mark.parametrize("number", [-1, 0, (1 << 63) - 1, -(1 << 63)])
def test_sums_that_no_clock_gives_do_no_harm(number):
    """Counts and sums that cannot be, as a broken agent may send them, are no reason to stop."""
    traffic, pairs, oneway = follow()
    traffic.step(lambda *_: 1000)
    posted, arrived = traffic.snapshots(pairs)
    for _ in range(2):
        broken = (sums._replace(counts=np.full_like(sums.counts, number)) for sums in (posted, arrived))
        oneway.add(*broken, now_s=1.0)
    assert oneway.side("h0/0", 0.5) == ""
