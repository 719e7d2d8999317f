"""Busy jobs without a fault: benign unrest, and other jobs that burst, meet at NICs or oversubscribe links for good."""

import math
import random
from typing import NamedTuple

from c4d_benign import checkpoint, clock_steps, collection, flap, stall, stepped, unrest
from c4d_busy_jobs import LOADS, busy_job
from c4d_congestion import NEIGHBOUR_SPAN_S, Burst, drawn_bursts, links, records, slowed
from c4d_telemetry import period_of

from c4bench.c4d.detector import Detector
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Evaluated
from c4bench.model.window import Window
from tools.sim.job import simulate

# So few hosts that a night has time for a million iterations.
HOSTS = (4, 8)
# One job in so many is alone on a fabric whose switches do not mark.
_ALONE = 4
# How many links are oversubscribed from first to last, and which part of one other jobs take.
_STANDING, _SHARE = (0, 3), (0.1, 0.4)
_PAUSES_S = 60.0
_UNREST = (checkpoint, stall, collection, flap)


class Soaked(NamedTuple):
    """What is named of a job that communicates for `load` of its time, and in how many iterations."""

    load: float
    ranks: int
    iterations: int
    found: list[Diagnosis]
    explained: int


def soak(seed, iterations):
    """Run a job of so many iterations without a fault; all of it is drawn from the seed."""
    draw = random.Random(f"busy soak {seed}")
    load, marking = draw.choice(LOADS), bool(draw.randrange(_ALONE))
    job = busy_job(draw, load, HOSTS, ecn=marking)
    longest_s = _PAUSES_S + 3 * iterations * period_of(job)
    bursts = _congestion(draw, job, longest_s) if marking else []
    faults = slowed(job, bursts) + unrest(draw, job, longest_s, _UNREST)
    steps = clock_steps(draw, job.ranks // job.ranks_per_host, longest_s)
    detector, found, explained, ended = Detector(), [], 0, 0
    told_s = draw.uniform(0.0, NEIGHBOUR_SPAN_S)
    for record in records(job, simulate(job, faults, longest_s), bursts, told_s):
        if isinstance(record, Window):
            ended = max(ended, _ended(job, record))
            record = stepped(record, steps)  # noqa: PLW2901 (as its host writes it)
        found += detector.ingest(record)
        explained += len(detector.poll_benign())
        if isinstance(record, Evaluated) and ended >= iterations:
            break
    return Soaked(load, job.ranks, ended, found, explained)


def _congestion(draw, job, duration_s):
    """Some links are oversubscribed from the start; on the others jobs burst."""
    known = links(job)
    standing = draw.sample(known, draw.randint(*_STANDING))
    taken = [Burst(link, draw.uniform(*_SHARE), 0.0, math.inf, draw.randint(1, 3)) for link in standing]
    return taken + drawn_bursts(draw, sorted(set(known) - set(standing)), duration_s)


def _ended(job, window):
    """How many iterations have ended by this window, as its host shows by the operations of its last group."""
    group = job.ops[-1].group
    per_iteration = sum(op.group == group for op in job.ops)
    name = f"{job.name}.{group.name if group else 'world'}"
    last = [op.seq for op in window.ops if op.finished_s and op.comm.startswith(name)]
    return (max(last, default=-1) + 1) // per_iteration
