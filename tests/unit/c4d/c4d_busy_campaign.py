"""Jobs that communicate for a tenth to more than half of their time, with one fault, two or none; from a seed."""

import random
from typing import NamedTuple

import msgspec
from c4d_busy_jobs import LOADS, busy_job
from c4d_campaign import FAULTS, Injected, down, fabric, recorded, slow_nic, slow_rank
from c4d_telemetry import drive

from tools.campaign.grade import grades
from tools.campaign.trial_record import NOTHING, TrialRecord, named_findings
from tools.sim.job import simulate
from tools.sim.model import SimJob
from tools.sim.prober import SimProber

_HEALTHY_S, _PATIENCE_S = (3.5, 4.5), 4.0
# How many faults there are: one in three fifths of the trials.
_FAULTS = (0, 1, 1, 1, 2)
# Pairs that leave each other to be seen: a rank that reports its error ends the job.
_PAIRS = ((slow_nic, slow_nic), (slow_nic, slow_rank), (slow_rank, slow_rank), (down, down))


class Drawn(NamedTuple):
    """What happens in a trial: a job that communicates for `load` of its time, and what is injected at `at_s`."""

    name: str
    load: float
    job: SimJob
    at_s: float
    injected: list[Injected]


def drawn(seed, number):
    """What happens in one trial of a seed."""
    draw = random.Random(f"busy {seed} {number}")
    load = draw.choice(LOADS)
    job = busy_job(draw, load)
    at_s = draw.uniform(*_HEALTHY_S)
    kinds = {0: (), 1: (draw.choice(FAULTS),), 2: draw.choice(_PAIRS)}[draw.choice(_FAULTS)]
    ranks = draw.sample(range(job.ranks), len(kinds))
    injected = [kind(draw, job, rank, at_s) for kind, rank in zip(kinds, ranks, strict=True)]
    return Drawn(f"busy-{seed}-{number}", load, job, at_s, injected)


def trial(one):
    """What came of a trial, with what was said of it."""
    windows, faults = [], [each.fault for each in one.injected]
    prober = SimProber(one.job, faults, busy=one.load)
    found = drive(one.job, faults, one.at_s + _PATIENCE_S, windows=windows, prober=prober)
    return msgspec.structs.replace(_recorded(one, windows, found), load=one.load)


def graded(trials):
    """The grades of trials, one for each fault."""
    return [grade for one in trials for grade in grades(one, fabric())]


def _recorded(one, windows, found):
    until_s = one.at_s + _PATIENCE_S
    if not one.injected:
        times = one.at_s, one.at_s, until_s
        return TrialRecord(one.name, "none", None, NOTHING, (), {}, *times, 0.0, False, named_findings(found))
    if len(one.injected) == 1:
        return recorded(one.name, one.injected[0], windows, until_s, found)
    # What each of two faults costs the job by itself.
    alone = [_alone(one.job, each, until_s) for each in one.injected]
    first, second = (recorded(one.name, *each, until_s) for each in zip(one.injected, alone, strict=True))
    return msgspec.structs.replace(first, findings=named_findings(found), beside=(second,))


def _alone(job, injected, until_s):
    return [window for tick in simulate(job, [injected.fault], until_s) for window in tick.windows]
