"""C4P beside the other ways to spread load, on the same pairs of hosts and in the same run.

These are ECMP over 1 to 16 QPs, QPs pinned to paths at random, and switches that spray the packets of one connection.
"""

import math
import time
from itertools import pairwise
from pathlib import Path

import pytest
from drawn_jobs import draws_job

from c4bench.c4p.policy import PathPolicy
from c4bench.control.paths.switches import carried_bytes
from c4bench.report.statistics import mean_interval
from c4bench.wire.messages import Meeting

SIZE_BYTES, OPERATIONS = 4 << 20, 2
PACKET_BYTES = 4096
DRAWS = 12
# Agents ship the NICs' counters ten times a second.
SHIPPED_S = 0.2
MODES = {
    "ECMP": ("ecmp", None),
    "ECMP, 4 QPs": ("ecmp/4", None),
    "ECMP, 8 QPs": ("ecmp/8", None),
    "ECMP, 16 QPs": ("ecmp/16", None),
    "pinned at random, 4 QPs": ("planned/4", PathPolicy(scope="random", dynamic=False)),
    "sprayed": ("sprayed", None),
    "sprayed, 4 QPs": ("sprayed/4", None),
    "sprayed, short timer": ("sprayed-short", None),
    "sprayed, 4 QPs, short timer": ("sprayed-short/4", None),
    "C4P, 4 QPs": ("planned/4", PathPolicy()),
}
SPRAYED = [mode for mode, (paths, _) in MODES.items() if paths.startswith("sprayed")]


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_baselines(spray_dscp, pairs_across, optimum_bps, of_optimum, campaign, measure, pytestconfig):
    """The plan gets nearly the optimum; beside it, what other ways get, and what spraying costs go-back-N receivers."""
    pairs = pairs_across(4)
    rounds = list(MODES) * DRAWS
    found = campaign("baselines", pairs, rounds, spray_dscp)
    best_bps = optimum_bps(pairs)
    labels = {"jobs": len(pairs), "topology": Path(pytestconfig.option.c4_topology).stem, "draws": DRAWS}
    for mode in MODES:
        drawn = [draw for how, draw in zip(rounds, found, strict=True) if how == mode]
        share = mean_interval([of_optimum(draw.worst_bps, best_bps) for draw in drawn])
        interval = {"low": round(share.low, 4), "high": round(share.high, 4)}
        wanted = 0.97 if mode == "C4P, 4 QPs" else None
        measure("c4p.optimum_fraction", share.mean, at_least=wanted, paths=mode, **labels, **interval)
        for name in ("out_of_sequence", "retransmits"):
            counted = sum(getattr(draw, name) for draw in drawn) / len(drawn)
            measure(f"c4p.{name}", 1000 * counted / packets(pairs), unit="per 1000 packets", paths=mode, **labels)
        if mode in SPRAYED:
            least = min(draw.evenness for draw in drawn)
            measure("c4p.spray_evenness", least, at_least=0.9, paths=mode, **labels)


class Draw:
    """What all jobs together did in one draw: the worst job's bus bandwidth, and what NICs and links counted.

    `evenness` is the least loaded of the links that a leaf can choose from, over their mean.
    """

    def __init__(self, worst_bps, counted, evenness):
        self.worst_bps, self.evenness = worst_bps, evenness
        self.out_of_sequence = counted["out_of_sequence"]
        self.retransmits = counted["retransmits"]


def packets(pairs):
    """Data packets of one draw: warm-up and timed operations, in both directions of every pair."""
    return 2 * len(pairs) * SIZE_BYTES * (OPERATIONS + 1) / PACKET_BYTES


@pytest.fixture
def spray_dscp(inventory):
    """The DSCP of the packets that all switches spray."""
    dscps = {inventory.facts[switch].spray_dscp for switch in inventory.switches}
    if len(dscps) != 1 or not (dscp := dscps.pop()):
        pytest.skip("no-spraying: the inventory's switches spray no packets, or of several DSCPs (c4.spray_dscp)")
    return dscp


@pytest.fixture
def campaign(cluster, atlas, switches):
    """`campaign(name, pairs, rounds, dscp)`: the `Draw` of each round, one job per pair and all at the same time."""

    def run(name, pairs, rounds, dscp):
        ways = [MODES[mode][0] for mode in rounds]
        sizes = {"size_bytes": SIZE_BYTES, "operations": OPERATIONS, "warm_up_bytes": SIZE_BYTES}
        specs = [
            draws_job(Meeting(name, 9), number, pair, ways, spray_dscp=dscp, **sizes)
            for number, pair in enumerate(pairs)
        ]
        jobs = [cluster.start(spec) for spec in specs]
        shipped_s, loads = [], []
        for number, mode in enumerate(rounds):
            cluster.meet(name, f"free{number}")
            cluster.plan_by(MODES[mode][1] or PathPolicy())
            time.sleep(SHIPPED_S)
            shipped_s.append(time.time())
            before = switches.ports() if mode in SPRAYED else {}
            for moment in ("open", "draw", "end"):
                cluster.meet(name, f"{moment}{number}")
            loads.append(carried_bytes(before, switches.ports()) if before else {})
        time.sleep(SHIPPED_S)
        shipped_s.append(time.time())
        results = [cluster.results(running, "draw", 60.0, each=len(rounds)) for running in jobs]
        counted = counters([window for running in jobs for window in cluster.windows(running.spec.id)], shipped_s)
        for running in jobs:
            cluster.stop(running.spec.id)
        cluster.plan_by(PathPolicy())
        return [
            Draw(min(rate(of_job, number) for of_job in results), counted[number], evenness(atlas, pairs, carried))
            for number, carried in enumerate(loads)
        ]

    return run


def counters(windows, moments_s):
    """Between each two moments, the events that all NICs counted; what one had counted last before a moment holds."""
    readings = []
    for moment_s in moments_s:
        newest = {}
        for window in sorted(windows, key=lambda window: window.end_s):
            if window.end_s <= moment_s:
                newest |= {nic.nic: nic for nic in window.nics}
        readings.append(newest)
    return [
        {name: events(before, after, name) for name in ("out_of_sequence", "retransmits")}
        for before, after in pairwise(readings)
    ]


def events(before, after, name):
    """What all NICs counted under this name between two readings; not a number if one has no such counter."""
    counts = [(getattr(before[key], name), getattr(nic, name)) for key, nic in after.items()]
    return math.nan if any(None in count for count in counts) else sum(last - first for first, last in counts)


def evenness(atlas, pairs, carried):
    """The least loaded of the links that a leaf can choose from, over their mean; 0 if nothing was read."""
    if not carried:
        return 0.0
    least = []
    for first in (0, 1):
        ends = [(pair[first].nics[0].name, pair[1 - first].nics[0].name) for pair in pairs]
        links = {path.hops[1] for source, target in ends for path in atlas.paths(source, target)}
        of_links = [carried[link] for link in links]
        least.append(min(of_links) * len(of_links) / sum(of_links))
    return min(least)


def rate(results, number):
    """Bus bandwidth of a job in a round, by its slower rank."""
    return SIZE_BYTES * 8 * OPERATIONS / max(rank["took_s"] for rank in results if rank["number"] == number)
