"""Any fault, anywhere, at any time, on any traffic, simulated; and what a right detector says of it."""

import random
from functools import cache
from typing import NamedTuple

from c4d_telemetry import drive

from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.step import RankGroup, StepOp
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch
from tools.campaign.grade import Grade, grades
from tools.campaign.measurable import Measurable
from tools.campaign.step_time import step_loss
from tools.campaign.trial_record import TrialRecord, named_findings
from tools.sim.model import SimFault, SimFaultKind, SimJob
from tools.sim.places import nic_of
from tools.sim.prober import SimProber, from_switch, to_switch

_TRAFFICS = {
    "ring": (8, 1, (StepOp("all_reduce", 4 << 20, 0.03),)),
    "all_to_all": (8, 1, (StepOp("all_to_all", 4 << 20, 0.03),)),
    "four_nics": (32, 4, (StepOp("all_reduce", 4 << 20, 0.03), StepOp("all_to_all", 4 << 20, 0.0))),
    "groups": (
        16,
        1,
        (
            StepOp("all_reduce", 4 << 20, 0.02, RankGroup("tensor", 2)),
            StepOp("send", 2 << 20, 0.0, RankGroup("pipeline", 2, 8)),
            StepOp("all_reduce", 4 << 20, 0.02, RankGroup("data", 4, 2)),
        ),
    ),
}
_HEALTHY_S, _PATIENCE_S = (3.5, 4.5), 3.0
_SLOW, _HANG = Syndrome.COMMUNICATION_SLOW, Syndrome.COMMUNICATION_HANG
_LATE, _GONE = Syndrome.NON_COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_HANG


class Injected(NamedTuple):
    """A fault, and what a right detector says of it."""

    fault: SimFault
    syndrome: Syndrome
    target: Component


class Trial(NamedTuple):
    """What happened and what was said: right if the target is the component said or one of its alternatives."""

    words: str
    said: tuple[str, ...]
    right: bool
    healthy_isolated: int
    record: TrialRecord
    grade: Grade


def trial(seed):
    """The trial of a seed."""
    draw = random.Random(f"campaign {seed}")
    traffic = draw.choice(sorted(_TRAFFICS))
    ranks, per_host, ops = _TRAFFICS[traffic]
    jitter = draw.choice([0.01, 0.03])
    job = SimJob(ranks, ops, seed=seed, jitter=jitter, ranks_per_host=per_host)
    rank, at_s = draw.randrange(ranks), draw.uniform(*_HEALTHY_S)
    injected = draw.choice(FAULTS)(draw, job, rank, at_s)
    windows = []
    prober = SimProber(job, [injected.fault])
    found = drive(job, [injected.fault], at_s + _PATIENCE_S, windows=windows, prober=prober)
    fault, syndrome, target = injected
    # A dead NIC may come without its side: where it has stopped everything nothing tells whether the other one is well.
    named = {target, Component(target.kind, target.name)} if syndrome is _HANG else {target}
    ours = [d for d in found if not named.isdisjoint(d.suspects)]
    others = [d for d in found if d not in ours and not d.alternatives]
    right = bool(ours) and ours[0].syndrome == syndrome
    words = f"{seed}: {fault.kind} {fault.factor:.2f} {fault.side} of {target} on {traffic}, jitter {jitter}"
    said = tuple(f"{d.syndrome}: {d.component}" for d in found)
    record = recorded(f"sim-{seed}", injected, windows, at_s + _PATIENCE_S, found)
    (grade,) = grades(record, fabric())
    return Trial(words, said, right, len(others), record, grade)


def recorded(name, injected, windows, until_s, found=()):
    """The trial as it is graded."""
    fault, syndrome, target = injected
    loss = step_loss(windows, fault.at_s, until_s)
    times = fault.at_s, fault.at_s, until_s
    words = {"factor": fault.factor, "direction": fault.side}
    return TrialRecord(
        name, str(fault.kind), syndrome, target, (), words, *times, loss.share, loss.stopped, named_findings(found)
    )


@cache
def graph():
    """All NICs on one switch, since the simulator has no other links: more of them than any job here uses."""
    every = [FabricHost(f"h{n}", tuple(f"h{n}/{i}" for i in range(4))) for n in range(32)]
    nics = [nic for host in every for nic in host.nics]
    links = [FabricLink(nic, "switch", 0.0, to_switch(nic)) for nic in nics]
    links += [FabricLink("switch", nic, 0.0, from_switch(nic)) for nic in nics]
    return Fabric((Switch("switch", 1),), tuple(every), tuple(links))


@cache
def fabric():
    """What that allows to measure."""
    return Measurable(graph())


def slow_nic(draw, job, rank, at_s):
    side = draw.choice(["tx", "rx"])
    fault = SimFault(SimFaultKind.NIC_RATE, rank, at_s, factor=draw.uniform(0.1, 0.9), side=side)
    return Injected(fault, _SLOW, Component("nic", nic_of(job, rank), side))


def slow_rank(draw, job, rank, at_s):
    least = 1.05 if job.jitter < 0.02 else 1.1
    fault = SimFault(SimFaultKind.COMPUTE, rank, at_s, factor=draw.uniform(least, 2.0))
    return Injected(fault, _LATE, Component("rank", f"job:{rank}"))


def dead_nic(draw, job, rank, at_s):
    side = draw.choice(["tx", "rx"])
    fault = SimFault(SimFaultKind.NIC_RATE, rank, at_s, factor=0.0, side=side)
    return Injected(fault, _HANG, Component("nic", nic_of(job, rank), side))


def gone(draw, job, rank, at_s):  # noqa: ARG001 (as the others)
    kind = draw.choice([SimFaultKind.STOPPED, SimFaultKind.HUNG, SimFaultKind.KILLED, SimFaultKind.RAISED])
    return Injected(SimFault(kind, rank, at_s), _GONE, Component("rank", f"job:{rank}"))


def down(draw, job, rank, at_s):  # noqa: ARG001 (as the others)
    """A rank's process does not run any more, which another one's does not hide."""
    kind = draw.choice([SimFaultKind.STOPPED, SimFaultKind.KILLED])
    return Injected(SimFault(kind, rank, at_s), _GONE, Component("rank", f"job:{rank}"))


def mismatch(draw, job, rank, at_s):  # noqa: ARG001 (as the others)
    return Injected(SimFault(SimFaultKind.MISMATCH, rank, at_s), _GONE, Component("job", "job"))


FAULTS = (slow_nic, slow_nic, slow_rank, slow_rank, dead_nic, gone, gone, mismatch)
