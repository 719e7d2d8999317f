"""What healthy jobs do: pauses, stalls, collections of garbage, flaps, neighbours, clock steps; all from a seed."""

import random

import msgspec
from c4d_telemetry import period_of, remade

from c4bench.c4d.detector import Detector
from c4bench.c4d.thresholds import benign_stall_s
from c4bench.model.step import StepOp
from tools.sim.job import simulate
from tools.sim.model import SimFault, SimFaultKind, SimJob

RANKS = 8
# A long and a short sequence in turn.
OPS = (
    StepOp("all_reduce", 2 << 20, 0.02),
    StepOp("all_to_all", 2 << 20, 0.0),
    StepOp("all_reduce", 1 << 20, 0.008),
)
WARM_UP_S = 2.0


def soak(seed, iterations):
    """What a detector says of so many benign iterations; receivers grant credit, all else is drawn from the seed."""
    draw = random.Random(seed)
    job = SimJob(RANKS, OPS, jitter=draw.choice([0.01, 0.03]), seed=seed)
    duration_s = iterations * period_of(job) * 1.2 + WARM_UP_S
    faults = unrest(draw, job, duration_s, _KINDS)
    steps = clock_steps(draw, RANKS, duration_s)
    detector, found, ended = Detector(), [], set()
    for tick in simulate(job, faults, duration_s):
        for window in tick.windows:
            detector.ingest_window(stepped(window, steps))
            ended.update(op.seq for op in window.ops if op.rank == 0 and op.finished_s)
        found += detector.evaluate(tick.time_s)
    return found, len(ended) // len(OPS)


def unrest(draw, job, duration_s, kinds):
    """What happens to a job, one of these kinds every four seconds."""
    at_s = [WARM_UP_S + 4.0 * index + draw.random() for index in range(int((duration_s - WARM_UP_S) / 4.0))]
    drawn = [draw.choice(kinds)(draw, job, time_s) for time_s in at_s]
    return [fault for faults in drawn for fault in faults]


def clock_steps(draw, hosts, duration_s):
    """When the clocks of two hosts are set, and by how much."""
    return {f"h{draw.randrange(hosts)}": (draw.uniform(5, duration_s), draw.uniform(-4, 4)) for _ in range(2)}


def _pause(draw, job, at_s):
    """All ranks write a checkpoint."""
    factor = draw.uniform(50, 150)
    return [SimFault(SimFaultKind.COMPUTE, rank, at_s, at_s + 0.04, factor) for rank in range(job.ranks)]


def checkpoint(draw, job, at_s):
    """All ranks write a checkpoint, for less than is a hang, some of them in another operation than others."""
    until_s = at_s + _stalled_s(draw, job)
    return [SimFault(SimFaultKind.HUNG, rank, at_s, until_s) for rank in range(job.ranks)]


def stall(draw, job, at_s):
    """One rank waits for data, for less than is a hang."""
    return [SimFault(SimFaultKind.HUNG, draw.randrange(job.ranks), at_s, at_s + _stalled_s(draw, job))]


def _stalled_s(draw, job):
    return draw.uniform(0.05, 0.95 * benign_stall_s(period_of(job)))


def collection(draw, job, at_s):
    """One step after the other is longer on some rank, each time on another."""
    spacing_s = draw.uniform(1, 3) * period_of(job)
    ranks = draw.sample(range(job.ranks), min(5, job.ranks))
    return [
        SimFault(SimFaultKind.COMPUTE, rank, at_s + i * spacing_s, at_s + (i + 0.5) * spacing_s, draw.uniform(1.2, 3))
        for i, rank in enumerate(ranks)
    ]


def flap(draw, job, at_s):
    """A link is gone for less than the time to retransmit."""
    rank, until_s = draw.randrange(job.ranks), at_s + draw.uniform(0.01, 0.2)
    return [SimFault(SimFaultKind.NIC_RATE, rank, at_s, until_s, 0.0, side) for side in ("tx", "rx")]


def _neighbour(draw, job, at_s):
    """Another job takes a part of what one half of the fabric carries to the other, for a while."""
    half, until_s, factor = job.ranks // 2, at_s + draw.uniform(0.5, 3.0), draw.uniform(0.5, 0.95)
    return [
        SimFault(SimFaultKind.PATH_RATE, rank, at_s, until_s, factor, peer=peer)
        for rank in range(half)
        for peer in range(half, job.ranks)
    ]


_KINDS = (_pause, stall, collection, flap, _neighbour)


def stepped(window, steps):
    """The window as a host writes it whose clock was set at some moment."""
    at_s, step_s = steps.get(window.host, (float("inf"), 0.0))
    if window.end_s < at_s:
        return window

    def moved(time_s):
        return time_s + step_s if time_s >= at_s else time_s

    ops = tuple(
        msgspec.structs.replace(
            op, entered_s=moved(op.entered_s), started_s=moved(op.started_s), finished_s=moved(op.finished_s)
        )
        for op in window.ops
    )
    conns = tuple(msgspec.structs.replace(c, last_progress_s=moved(c.last_progress_s)) for c in window.conns)
    times = {"start_s": window.start_s + step_s, "end_s": window.end_s + step_s}
    return remade(window, ops=ops, conns=conns, **times)
