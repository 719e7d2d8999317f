"""One-way delays from two ends' sums, with clocks that do not agree."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.c4d.network.one_way_delays import OneWayDelays
from c4bench.model.telemetry import ArrivalRecord, ConnRecord

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

    def records(self):
        conns, arrivals = [], []
        for (source, destination), (count, posted, arrived) in self.sums.items():
            ranks = NICS.index(source), NICS.index(destination)
            conns.append(
                ConnRecord(
                    "c",
                    *ranks,
                    source,
                    destination,
                    1,
                    0,
                    count,
                    count,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    posted=count,
                    posted_sum_ns=posted,
                )
            )
            arrivals.append(ArrivalRecord("c", *reversed(ranks), source, destination, 1, count, count, arrived))
        return conns, arrivals


@pytest.mark.parametrize("side", ["rx", "tx"])
@settings(max_examples=30, deadline=None)
@given(
    nic=st.sampled_from(NICS),
    offsets=st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4),
    growth_ns=st.integers(20_000, 10**8),
)
def test_side_is_told_whatever_the_clocks_say(side, nic, offsets, growth_ns):
    """Delays that grow on one side of a NIC name that side, for any offsets between the hosts' clocks."""
    traffic, oneway = Traffic(dict(zip(NICS, offsets, strict=True))), OneWayDelays()
    for step in range(20):
        slow = step >= 10

        def delay_ns(source, destination, slow=slow):
            hit = destination if side == "rx" else source
            return 100_000 + (growth_ns if slow and hit == nic else 0)

        traffic.step(delay_ns)
        oneway.add(*traffic.records(), now_s=float(step))
    assert oneway.side(nic, 9.5) == side


def test_side_is_told_where_the_other_waits_for_acknowledgements():
    """Of what a NIC receives every other message waits for an acknowledgement that it sends late: half the delay."""
    traffic, oneway = Traffic(dict.fromkeys(NICS, 0)), OneWayDelays()
    for step in range(20):

        def delay_ns(source, destination, slow=step >= 10):
            sent, received = source == "h0/0", destination == "h0/0"
            return 100_000 + slow * (1_700_000 * sent + 950_000 * received)

        traffic.step(delay_ns)
        oneway.add(*traffic.records(), now_s=float(step))
    assert oneway.side("h0/0", 9.5) == "tx"


def test_unmatched_counters_say_nothing():
    """Without two snapshots in which both ends have counted equally many messages there is no verdict."""
    traffic, oneway = Traffic(dict.fromkeys(NICS, 0)), OneWayDelays()
    for step in range(10):
        traffic.step(lambda *_: 1000)
        conns, _ = traffic.records()
        oneway.add(conns, [], now_s=float(step))
    assert oneway.side("h1/0", 5.0) == ""


def test_delays_that_grow_everywhere_blame_no_side():
    """A NIC whose delays grow both ways, as a busy fabric's do, is not pinned to one side."""
    traffic, oneway = Traffic(dict.fromkeys(NICS, 0)), OneWayDelays()
    for step in range(20):
        traffic.step(lambda *_, step=step: 1000 if step < 10 else 500_000)
        oneway.add(*traffic.records(), now_s=float(step))
    assert oneway.side("h1/0", 9.5) == ""


def test_only_new_counters_need_to_be_added():
    """Ends that have not moved may be left out: the side is told as if all had been added each time."""
    traffic, oneway = Traffic(dict.fromkeys(NICS, 0)), OneWayDelays()
    seen = set()
    for step in range(20):
        traffic.step(lambda _, destination, step=step: 1000 + 50_000 * (step >= 10 and destination == "h2/0"))
        conns, arrivals = traffic.records()
        late = arrivals if step % 2 else []
        oneway.add([conn for conn in conns if conn not in seen], [end for end in late if end not in seen], float(step))
        seen.update(conns, late)
    assert oneway.side("h2/0", 9.5) == "rx"


def test_a_communicator_that_ends_leaves_its_delays_to_no_other():
    """Connections of a later communicator begin without delays, though they have the same NICs and counts."""
    oneway = OneWayDelays()
    for name in ("c", "d"):
        traffic = Traffic(dict.fromkeys(NICS, 0))
        for step in range(10 if name == "c" else 25):
            traffic.step(lambda _, destination, name=name: 1000 + 50_000 * (name == "d" and destination == "h2/0"))
            conns, arrivals = (
                [msgspec.structs.replace(record, comm=name) for record in records] for records in traffic.records()
            )
            oneway.add(conns, arrivals, now_s=float(step + 10 * (name == "d")))
        if name == "c":
            oneway.forget({"c"})
    assert oneway.side("h2/0", 9.5) == ""


@pytest.mark.parametrize("number", [-1, 1 << 64, 1 << 80])
def test_sums_that_no_clock_gives_do_no_harm(number):
    """Counts and sums that do not fit, as a broken agent may send them, are no reason to stop."""
    traffic, oneway = Traffic(dict.fromkeys(NICS, 0)), OneWayDelays()
    traffic.step(lambda *_: 1000)
    conns, arrivals = traffic.records()
    for _ in range(2):
        oneway.add(
            [msgspec.structs.replace(conn, posted=number, posted_sum_ns=number) for conn in conns],
            [msgspec.structs.replace(end, arrived=number, arrived_sum_ns=-number) for end in arrivals],
            now_s=1.0,
        )
    assert oneway.side("h0/0", 0.5) == ""
