"""The atlas: how long learning takes, what it costs, and whether the switches' counters confirm it."""

import random
import time
from collections import Counter

import pytest

from c4bench.c4p.evaluation import gaps
from c4bench.c4p.knowledge.path_knowledge import COUNTERS, PROBES
from c4bench.c4p.policy import PathPolicy
from c4bench.control.paths.switches import carried_bytes, carried_packets
from c4bench.model.measurement import Clock
from c4bench.wire.probes import Burst

MOST_PACKETS = 16
_ANY_HOPS = 64
# Probes under Linux's limits of ICMP errors: six to a prober, then one each second. Counters where no switch answers.
LEARN_S = {PROBES: 30.0, COUNTERS: 60.0}


@pytest.mark.needs(hosts=8)
def test_the_atlas_is_right(cluster, rdma_hosts, switches, measure):
    """All paths of all pairs are learnt in time with under 1 % of a link's capacity; packets then take these paths."""
    if not switches.any:
        pytest.skip("no-switches: the inventory names no switches to count packets on")
    before = switches.ports()
    began = time.monotonic()
    atlas = cluster.learn_paths(read=switches.ports)
    took_s = time.monotonic() - began
    carried = carried_bytes(before, switches.ports())
    nics = {nic.name: nic for host in rdma_hosts for nic in host.nics}
    known = cluster.known_paths()
    entries = [(pair, port, entry.hops) for pair in known.pairs for port, entry in known.entries(pair).items()]
    (by,) = {entry.how for pair in known.pairs for entry in known.entries(pair).values()}
    measure("atlas.learn_s", took_s, unit="s", at_most=LEARN_S[by], hosts=len(rdma_hosts), by=by)
    rate_bps = min(nic.rate_bps for nic in nics.values())
    measure("atlas.load_fraction", max(carried.values()) * 8 / took_s / rate_bps, at_most=0.01, by=by)
    pairs = [(a.name, b.name) for a in nics.values() for b in nics.values() if a.host != b.host]
    incomplete = {pair for pair in pairs if not atlas.paths(*pair)}
    incomplete |= {(gap.source, gap.destination) for gap in gaps(atlas)}
    measure("atlas.incomplete_pairs", len(incomplete), at_most=0, clock=Clock.NONE, pairs=len(pairs))

    # No checks of known paths meanwhile: where counters have to be waited for, there is time to count these too.
    cluster.plan_by(PathPolicy(dynamic=False))
    try:
        wrong = contradicted(cluster, switches, nics, entries)
    finally:
        cluster.plan_by(PathPolicy())
    correct = 1 - len(wrong) / len(entries)
    measure("atlas.correct_fraction", correct, equals=1, clock=Clock.NONE, entries=len(entries), by=by)


def contradicted(cluster, switches, nics, entries):
    """The entries whose packets took another path, found by bisection of entries that the counters contradict."""
    if as_counted(cluster, switches, nics, entries):
        return []
    if len(entries) == 1:
        return entries
    half = len(entries) // 2
    return [
        *contradicted(cluster, switches, nics, entries[:half]),
        *contradicted(cluster, switches, nics, entries[half:]),
    ]


def as_counted(cluster, switches, nics, entries):
    """Send a random number of packets from each entry's port; return whether every switch port counts them."""
    rng = random.Random(1)
    expected, bursts = Counter(), {}
    for (source, destination), port, hops in entries:
        count = rng.randint(1, MOST_PACKETS)
        bursts.setdefault((nics[source], nics[destination]), []).append(Burst(port, _ANY_HOPS, count))
        expected.update(dict.fromkeys(hops, count))
    before = switches.ports()
    cluster.send_bursts(bursts)
    time.sleep(0.1)
    carried = carried_packets(before, switches.ports())
    return all(expected[hop] == count for hop, count in carried.items())
