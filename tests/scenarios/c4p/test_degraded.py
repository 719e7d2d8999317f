"""Links drawn at random are down: what the worst job gets of what is left, planned, by an old plan, by ECMP."""

import contextlib
import random
import time

import pytest
from drawn_jobs import draws_job, qps_of

from c4bench.c4p.policy import PathPolicy
from c4bench.report.statistics import mean_interval
from c4bench.wire.messages import Meeting

SIZE_BYTES, STAGING_BYTES = 32 << 20, 8 << 20
# The plan of before comes first, because its connections are open when the links go down. New connections are planned
# again and again: acknowledgements, whose paths are hashed, wait for each other's data, now more, now less.
WAYS = ("static", *["planned"] * 4, "ecmp")
HOW = {"static": "planned/0", "planned": "planned/0", "ecmp": "ecmp/same"}
# Links are lost at the pace of a fabric that ages: switches have answered all questions about the last loss.
SETTLE_S, OPEN_S, LEASE_S = 20.0, 60.0, 300.0
FIRST_SEED, DRAWS = 52_001, 2


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.parametrize("links_down", [0.0, 0.05, 0.1, 0.2])
def test_worst_job_gets_its_share_of_what_is_left(
    links_down, cluster, pairs_across, atlas, ports, optimum_bps, of_optimum, inject, measure, pytestconfig
):
    """With this part of the links between switches down, jobs that begin then have their share of the others.

    The worst job of the worst round has it.
    """
    pairs = pairs_across(4)
    trunks = trunks_of(pairs, atlas, ports)
    name = f"degraded{round(100 * links_down)}"
    sizes = {"size_bytes": SIZE_BYTES, "staging_bytes": STAGING_BYTES}
    # The jobs' ranks, and this test, which injects the faults in between.
    meeting = Meeting(name, 2 * len(pairs) + 1)
    rounds = [HOW[way] for way in WAYS] * DRAWS
    jobs = [cluster.start(draws_job(meeting, number, pair, rounds, **sizes)) for number, pair in enumerate(pairs)]
    best_bps = []
    for draw in range(DRAWS):
        lost = drawn(trunks, links_down, pairs, atlas, FIRST_SEED + draw)
        best_bps.append(optimum_bps(pairs, frozenset().union(*(trunks[trunk] for trunk in lost))))
        down = [inject("link.down", at=trunk, lease_s=LEASE_S) for trunk in lost]
        measure_draw(cluster, name, draw * len(WAYS), down)
    results = [cluster.results(job, "draw", 60.0, each=len(WAYS) * DRAWS) for job in jobs]
    qps = qps_of(cluster, jobs, 1)
    for job in jobs:
        cluster.stop(job.spec.id)
    labels = {"links_down": links_down, "topology": pytestconfig.option.c4_topology, "jobs": len(pairs), "draws": DRAWS}
    for paths, at_least in (("static", None), ("planned", 0.98), ("ecmp", None)):
        numbers = [number for number, way in enumerate(WAYS * DRAWS) if way == paths]
        shares = [of_optimum(rate_bps(results, number), best_bps[number // len(WAYS)]) for number in numbers]
        spread = {"rounds": len(shares)}
        if len(shares) > DRAWS:
            spread |= {name: round(value, 4) for name, value in mean_interval(shares)._asdict().items()}
        measure("c4p.optimum_fraction", min(shares), at_least=at_least, paths=paths, qps=qps, **labels, **spread)


def trunks_of(pairs, atlas, ports):
    """The links between switches that paths of these pairs cross, by the name of a port, each with its two hops."""
    trunks = {}
    for one, other in (ends for pair in pairs for ends in (pair, pair[::-1])):
        for path in atlas.paths(one.nics[0].name, other.nics[0].name):
            for hop in path.hops[1:-1]:
                if hop in ports.leading and ports.addresses[ports.leading[hop]] not in trunks.values():
                    trunks[ports.leading[hop]] = ports.addresses[ports.leading[hop]]
    if len(trunks) < 2:
        pytest.skip("no-switches: the inventory names no switches that links could be taken down on")
    return trunks


def drawn(trunks, part, pairs, atlas, seed):
    """Some of the links at random, at least one of them unless none is to go; every pair still has a path."""
    chance = random.Random(seed)
    ends = [(one.nics[0].name, other.nics[0].name) for one, other in pairs]
    while True:
        lost = chance.sample(sorted(trunks), max(int(part > 0), round(part * len(trunks))))
        hops = frozenset().union(*(trunks[trunk] for trunk in lost))
        both = [way for pair in ends for way in (pair, pair[::-1])]
        if all(any(hops.isdisjoint(path.hops) for path in atlas.paths(*way)) for way in both):
            return lost


def measure_draw(cluster, name, first, down):
    """One round for each way: open by the plan that stays, lose links, and measure; then open again for each other."""
    cluster.meet(name, f"free{first}")
    cluster.plan_by(PathPolicy(dynamic=False))
    cluster.meet(name, f"open{first}")
    with contextlib.ExitStack() as faults:
        for fault in down:
            faults.enter_context(fault)
        for number in range(first, first + len(WAYS)):
            if number > first:
                cluster.meet(name, f"free{number}")
                cluster.plan_by(PathPolicy())
                cluster.meet(name, f"open{number}")
            time.sleep(SETTLE_S)
            cluster.meet(name, f"draw{number}")
            cluster.meet(name, f"end{number}")
    cluster.wait_links(OPEN_S)
    time.sleep(SETTLE_S)


def rate_bps(results, number):
    """Bus bandwidth of the slowest job in a round: bits over the slower rank's time."""
    took_s = [rank["took_s"] for ranks in results for rank in ranks if rank["number"] == number]
    return SIZE_BYTES * 8 / max(took_s)
