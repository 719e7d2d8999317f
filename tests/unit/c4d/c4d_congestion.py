"""Congestion in the simulator: a job whose hosts are under two leaves, and what other jobs carry on its links.

A link from a leaf to a spine carries what it can. Other jobs take a part of that, and what is left is the rate of each
path of the job that crosses it. A fault leaves less. NICs count marks wherever a path is slower than its NICs.
"""

import random
from itertools import permutations
from typing import NamedTuple

from c4d_benign import stepped
from c4d_telemetry import MIX, period_of

from c4bench.c4d.detector import Detector
from c4bench.model.recording import Evaluated, LinkRates, PathsLearnt, TrafficCarried
from c4bench.model.window import Window
from c4bench.units import payload_bound
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.places import Places, nic_of
from tools.sim.trace import shifts_of

RATE_BPS = 10e9
HOSTS, SPINES, FIRST_PORT = 8, 2, 0xC000
NEIGHBOUR_SPAN_S = 0.23
ONSET_S = 3.1
UPLINK, RECEIVER = "leaf0>spine1", "leaf1>h5/0"
WARM_UP_S = 4.0


class Burst(NamedTuple):
    """Other jobs take `share` of what `link` can carry, from `at_s` until `until_s`; if several, in equal parts.

    Messages count in the span in which they end, so that it may show more or less: `shown` in turn, as shares.
    """

    link: str
    share: float
    at_s: float
    until_s: float
    jobs: int = 1
    shown: tuple[float, ...] = (1.0,)


def paths(job):
    """The links of every path of a job, by source, destination and source port, named FROM>TO."""
    ports = range(FIRST_PORT, FIRST_PORT + len(shifts(job)))
    pairs = [(nic_of(job, a), nic_of(job, b), hops(job, a, b)) for a, b in permutations(range(job.ranks), 2)]
    return {(source, target, port): crossed for source, target, crossed in pairs for port in ports}


def shifts(job):
    """The job's groups, and how far on in each the ranks are that a rank sends to."""
    sizes = {op.group: op.group.size if op.group else job.ranks for op in job.ops}
    return {(op.group, shift) for op in job.ops for shift in shifts_of(op.kind, sizes[op.group])}


def hops(job, a, b):
    """The links from one rank's NIC to another's."""
    leaves = [f"leaf{2 * rank // job.ranks}" for rank in (a, b)]
    spine = f"spine{(a + b) % SPINES}"
    between = (f"{leaves[0]}>{spine}", f"{spine}>{leaves[1]}") if leaves[0] != leaves[1] else ()
    return f"{nic_of(job, a)}>{leaves[0]}", *between, f"{leaves[1]}>{nic_of(job, b)}"


def links(job):
    """All links of its fabric."""
    return sorted({hop for a, b in permutations(range(job.ranks), 2) for hop in hops(job, a, b)})


LINKS = links(SimJob(HOSTS, MIX))


def crossing(job, link):
    """The pairs of ranks that send over a link."""
    peers = [Places(job, group).peer(shift).tolist() for group, shift in shifts(job)]
    pairs = {(a, b) for each in peers for a, b in enumerate(each)}
    return sorted((a, b) for a, b in pairs if link in hops(job, a, b))


def slowed(job, bursts, faults=()):
    """What each path is left with while other jobs burst, and links (`faults`: link, factor, since) are slow."""
    found = []
    for link in {one.link for one in bursts} | {link for link, _, _ in faults}:
        pairs = crossing(job, link)
        found += [
            SimFault(SimFaultKind.PATH_RATE, a, at_s, until_s, max(left, 0.02), peer=b)
            for at_s, until_s, left in _left(link, bursts, faults)
            for a, b in pairs
        ]
    return found


def _left(link, bursts, faults):
    """From when until when a link has less than its rate for a job, and how much."""
    own = [one for one in bursts if one.link == link]
    slow = [(factor, at_s) for hit, factor, at_s in faults if hit == link]
    edges = sorted({one.at_s for one in own} | {one.until_s for one in own} | {at_s for _, at_s in slow})
    for at_s, until_s in zip(edges, [*edges[1:], 1e9], strict=True):
        taken = sum(one.share for one in own if one.at_s <= at_s < one.until_s)
        left = min((factor for factor, since_s in slow if since_s <= at_s), default=1.0) - taken
        if left < 1.0:
            yield at_s, until_s, left


def judged(seed, bursts, faults=(), duration_s=7.0, *, ecn=True, job=None, heard=None, detector=None, steps=None):
    """What a detector names, and the slowdowns that it explains; `heard` gets what it ingests.

    `steps`: when hosts' clocks are set, and by how much.
    """
    heard = [] if heard is None else heard
    detector, found, benign = detector or Detector(), [], []
    job = job or SimJob(HOSTS, MIX, seed=seed, ecn=ecn)
    told_s = random.Random(seed).uniform(0.0, NEIGHBOUR_SPAN_S)
    for record in records(job, simulate(job, slowed(job, bursts, faults), duration_s), bursts, told_s):
        record = stepped(record, steps) if steps and isinstance(record, Window) else record  # noqa: PLW2901 (as written)
        heard.append(record)
        found += detector.ingest(record)
        if isinstance(record, Evaluated):
            benign += detector.poll_benign()
    return found, benign


def records(job, ticks, bursts, told_s):
    """What C4D receives of a job, in order; the spans in which others report close at `told_s` and then in turn."""
    yield PathsLearnt(0.0, tuple((*path, crossed) for path, crossed in paths(job).items()))
    yield LinkRates(0.0, dict.fromkeys(links(job), RATE_BPS))
    for tick in ticks:
        while told_s + NEIGHBOUR_SPAN_S <= tick.time_s:
            told_s += NEIGHBOUR_SPAN_S
            yield from carried(bursts, told_s - NEIGHBOUR_SPAN_S, told_s)
        yield from tick.windows
        yield Evaluated(tick.time_s)


def carried(bursts, opened_s, closed_s):
    """What the other jobs report of a span of theirs."""
    for number, burst in enumerate(bursts):
        lasted_s = min(closed_s, burst.until_s) - max(opened_s, burst.at_s)
        if lasted_s > 0:
            shown = burst.shown[round((opened_s - burst.at_s) / NEIGHBOUR_SPAN_S) % len(burst.shown)]
            share = shown * burst.share / burst.jobs * lasted_s / (closed_s - opened_s)
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
    bursts = drawn_bursts(draw, LINKS, duration_s)
    return (*judged(seed, bursts, duration_s=duration_s, job=job), len(bursts))


def drawn_bursts(draw, among, duration_s):
    """Other jobs burst one after the other, each time on some link."""
    bursts, at_s = [], WARM_UP_S
    while at_s < duration_s:
        until_s = at_s + draw.uniform(0.3, 4.0)
        bursts.append(Burst(draw.choice(among), draw.uniform(0.1, 0.9), at_s, until_s, draw.randint(1, 7)))
        at_s = until_s + draw.uniform(0.5, 3.0)
    return bursts
