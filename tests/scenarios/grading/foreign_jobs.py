"""Simulated jobs with one fault each, written in the formats of other tools, and what is right to say of them."""

import random
from typing import NamedTuple

from c4bench.evidence.collect import collect
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.write import WRITERS, history
from c4bench.model.step import RankGroup, StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

# How many stages the pipeline has, by the number of ranks; tensor groups have 8 ranks, data groups what is left.
STAGES = {1000: 5, 10_000: 25}
# The faults that are tried: only the flight recorder and RAS know of operations that do not end.
HANGS = (SimFaultKind.HUNG, SimFaultKind.STOPPED, SimFaultKind.KILLED, SimFaultKind.MISMATCH)
FAULTS = {"flight-recorder": HANGS, "ras": HANGS, "inspector": (SimFaultKind.COMPUTE,)}
# What a rank calls in place of the job's collective. NCCL counts each of these as a kind of its own.
WRONG_CALLS = ("broadcast", "reduce", "reduce_scatter")


class Answer(NamedTuple):
    """Whether the fault's rank was named alone, or among others, and whether a healthy one was named alone."""

    right: bool
    among: bool
    accused: bool
    said: str


def job_of(ranks, seed, *, passes_by="all_gather", offsets_s=()):
    """A job with tensor, pipeline and data groups, each of whose iterations takes some 30 ms.

    Stages pass on their results by a collective of the pipeline, or by `send`. Hosts' clocks are off by `offsets_s`.
    """
    stages = STAGES[ranks]
    ops = (
        StepOp("all_reduce", 1 << 20, 0.01, RankGroup("tensor", 8, 1)),
        StepOp(passes_by, 1 << 20, 0.005, RankGroup("stage", stages, 8)),
        StepOp("all_reduce", 4 << 20, 0.01, RankGroup("data", ranks // 8 // stages, 8 * stages)),
    )
    return SimJob(ranks, ops, seed=seed, window_s=0.5, rate_bps=100e9, ranks_per_host=8, clock_offsets_s=offsets_s)


def written(folder, form, ranks, kind, seed, *, lost=0.0, calls=WRONG_CALLS, **shape):
    """Write the files of a job whose rank, which is returned, is at fault; a share of the files is `lost`.

    With a mismatch the rank calls one of `calls`. `shape` is that of the job.
    """
    rng = random.Random(seed)
    rank = rng.randrange(ranks)
    factor = 1.5 if kind is SimFaultKind.COMPUTE else 1.0
    fault = SimFault(kind, rank, rng.uniform(0.3, 0.5), factor=factor, call=calls[seed % len(calls)])
    job = history(window for tick in simulate(job_of(ranks, seed, **shape), [fault], 1.5) for window in tick.windows)
    for name, data in WRITERS[form](job):
        if rng.random() >= lost:
            (folder / name).write_bytes(data)
    return rank


def answer(folder, ranks, rank):
    """What the files in `folder` say, against the rank at fault."""
    verdicts = judge(collect([folder]), ranks=ranks).verdicts
    alone = [verdict.culprits[0] for verdict in verdicts if len(verdict.culprits) == 1]
    among = any(rank in verdict.suspects for verdict in verdicts)
    said = "; ".join(f"{verdict.diagnosis.cause} {verdict.culprits[:4]}" for verdict in verdicts)
    return Answer(alone == [rank], among, any(one != rank for one in alone), said)
