"""Congestion in the simulator: a job of eight hosts under two leaves, and what other jobs carry on its links.

A link from a leaf to a spine carries what it can. Other jobs take a part of that, and what is left is the rate of each
path of the job that crosses it. A fault leaves less. NICs count marks wherever a path is slower than its NICs.
"""

import random
from typing import NamedTuple

from c4d_telemetry import MIX, period_of

from c4bench.c4d.detector import Detector
from c4bench.model.recording import Evaluated, LinkRates, PathsLearnt, TrafficCarried
from c4bench.sim.job import simulate
from c4bench.sim.model import SimFault, SimFaultKind, SimJob
from c4bench.units import payload_bound

RATE_BPS = 10e9
HOSTS, SPINES, FIRST_PORT = 8, 2, 0xC000
NEIGHBOUR_SPAN_S = 0.23
ONSET_S = 3.1
UPLINK, RECEIVER = "leaf0>spine1", "leaf1>h5"
WARM_UP_S = 4.0


class Burst(NamedTuple):
    """Other jobs take `share` of what `link` can carry, from `at_s` until `until_s`; if several, in equal parts."""

    link: str
    share: float
    at_s: float
    until_s: float
    jobs: int = 1


def paths():
    """The links of every path, by source, destination and source port, named FROM>TO."""
    known = {}
    for a in range(HOSTS):
        for b in range(HOSTS):
            leaves = f"leaf{a // 4}", f"leaf{b // 4}"
            spine = f"spine{(a + b) % SPINES}"
            between = (f"{leaves[0]}>{spine}", f"{spine}>{leaves[1]}") if leaves[0] != leaves[1] else ()
            hops = (f"h{a}>{leaves[0]}", *between, f"{leaves[1]}>h{b}")
            if a != b:
                for port in range(FIRST_PORT, FIRST_PORT + HOSTS + 1):
                    known[f"h{a}/0", f"h{b}/0", port] = hops
    return known


PATHS = paths()
LINKS = sorted({hop for hops in PATHS.values() for hop in hops})


def crossing(link):
    """The pairs of ranks whose path crosses a link."""
    found = {path[:2] for path, hops in PATHS.items() if link in hops}
    return sorted((int(a[1:-2]), int(b[1:-2])) for a, b in found)


def slowed(bursts, faults):
    """What each path is left with while other jobs burst, and links (`faults`: link, factor, since) are slow."""
    found = []
    for link in {one.link for one in bursts} | {link for link, _, _ in faults}:
        own = [one for one in bursts if one.link == link]
        slow = [(factor, at_s) for hit, factor, at_s in faults if hit == link]
        edges = sorted({one.at_s for one in own} | {one.until_s for one in own} | {at_s for _, at_s in slow})
        for at_s, until_s in zip(edges, [*edges[1:], 1e9], strict=True):
            taken = sum(one.share for one in own if one.at_s <= at_s < one.until_s)
            left = min((factor for factor, since_s in slow if since_s <= at_s), default=1.0) - taken
            if left < 1.0:
                found += [
                    SimFault(SimFaultKind.PATH_RATE, a, at_s, until_s, max(left, 0.02), peer=b)
                    for a, b in crossing(link)
                ]
    return found


def judged(seed, bursts, faults=(), duration_s=7.0, *, ecn=True, job=None, heard=None, detector=None):
    """What a detector names, and the slowdowns that it explains; `heard` gets what it ingests."""
    heard = [] if heard is None else heard
    detector, found, benign = detector or Detector(), [], []

    def ingest(record):
        heard.append(record)
        found.extend(detector.ingest(record))

    ingest(PathsLearnt(0.0, tuple((*path, hops) for path, hops in PATHS.items())))
    ingest(LinkRates(0.0, dict.fromkeys(LINKS, RATE_BPS)))
    job = job or SimJob(HOSTS, MIX, seed=seed, ecn=ecn)
    told_s = random.Random(seed).uniform(0.0, NEIGHBOUR_SPAN_S)
    for tick in simulate(job, slowed(bursts, faults), duration_s):
        while told_s + NEIGHBOUR_SPAN_S <= tick.time_s:
            told_s += NEIGHBOUR_SPAN_S
            for record in carried(bursts, told_s - NEIGHBOUR_SPAN_S, told_s):
                ingest(record)
        for window in tick.windows:
            ingest(window)
        ingest(Evaluated(tick.time_s))
        benign += detector.poll_benign()
    return found, benign


def carried(bursts, opened_s, closed_s):
    """What the other jobs report of a span of theirs."""
    for number, burst in enumerate(bursts):
        lasted_s = min(closed_s, burst.until_s) - max(opened_s, burst.at_s)
        if lasted_s > 0:
            share = burst.share / burst.jobs * lasted_s / (closed_s - opened_s)
            for job in range(burst.jobs):
                name, bps = f"beside{number}.{job}", {burst.link: share * payload_bound(RATE_BPS)}
                yield TrafficCarried(name, opened_s, closed_s, bps)


def soak(seed, iterations):
    """What is named of a job of so many iterations beside which others burst, oversubscribe links and meet at NICs.

    How long each burst lasts, how much it takes of which link, and from how many jobs it comes is drawn from the seed.
    """
    draw = random.Random(seed)
    job = SimJob(HOSTS, MIX, seed=seed, ecn=True, jitter=draw.choice([0.01, 0.03]))
    duration_s = WARM_UP_S + iterations * period_of(job) * 1.5
    bursts, at_s = [], WARM_UP_S
    while at_s < duration_s:
        until_s = at_s + draw.uniform(0.3, 4.0)
        bursts.append(Burst(draw.choice(LINKS), draw.uniform(0.1, 0.9), at_s, until_s, draw.randint(1, 7)))
        at_s = until_s + draw.uniform(0.5, 3.0)
    return (*judged(seed, bursts, duration_s=duration_s, job=job), len(bursts))
