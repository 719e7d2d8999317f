"""Two faults at once, drawn from a seed, and what a right detector says of them."""

import random

from c4d_telemetry import MIX, drive

from c4bench.model.diagnosis import Component
from c4bench.model.step import RankGroup, StepOp
from tools.sim.model import SimFault, SimFaultKind, SimJob

_GROUPS = (
    StepOp("all_reduce", 4 << 20, 0.02, RankGroup("tensor", 4)),
    StepOp("all_to_all", 4 << 20, 0.02, RankGroup("data", 4, 4)),
)
_AT_S, _PATIENCE_S = 4.0, 5.0


def pair(seed):
    """What is said of a job with two faults of different ranks, and the two components that have them."""
    draw = random.Random(seed)
    ops, ranks = draw.choice([(MIX, 8), (_GROUPS, 16)])
    job = SimJob(ranks, ops, seed=seed, jitter=draw.choice([0.01, 0.03]))
    kinds = draw.choice([(_slow_nic, _slow_nic), (_slow_nic, _slow_rank), (_slow_rank, _slow_rank), (_down, _down)])
    drawn = [
        kind(draw, rank, _AT_S + draw.uniform(0, 0.3))
        for kind, rank in zip(kinds, draw.sample(range(ranks), 2), strict=True)
    ]
    found = drive(job, [fault for fault, _ in drawn], _AT_S + _PATIENCE_S)
    return {one.component for one in found}, {component for _, component in drawn}


def _slow_nic(draw, rank, at_s):
    side = draw.choice(["tx", "rx"])
    fault = SimFault(SimFaultKind.NIC_RATE, rank, at_s, factor=draw.uniform(0.1, 0.7), side=side)
    return fault, Component("nic", f"h{rank}/0", side)


def _slow_rank(draw, rank, at_s):
    return SimFault(SimFaultKind.COMPUTE, rank, at_s, factor=draw.uniform(1.2, 2.0)), Component("rank", f"job:{rank}")


def _down(draw, rank, at_s):
    kind = draw.choice([SimFaultKind.STOPPED, SimFaultKind.KILLED])
    return SimFault(kind, rank, at_s), Component("rank", f"job:{rank}")
