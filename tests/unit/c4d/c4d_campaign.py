"""Any fault, anywhere, at any time, on any traffic, simulated; and what a right detector says of it."""

import random
from functools import cache
from typing import NamedTuple

from c4d_telemetry import drive

from c4bench.campaign.grade import Grade, grade
from c4bench.campaign.measurable import Measurable
from c4bench.campaign.step_time import step_loss
from c4bench.campaign.trial_record import TrialRecord, named_findings
from c4bench.model.diagnosis import Component, Syndrome
from c4bench.model.step import RankGroup, StepOp
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch
from c4bench.sim.model import SimFault, SimFaultKind, SimJob

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


class Trial(NamedTuple):
    """What happened and what was said: right if the target is the component said or one of its alternatives."""

    words: str
    said: tuple[str, ...]
    right: bool
    healthy_isolated: int
    grade: Grade


def trial(seed):
    """The trial of a seed."""
    draw = random.Random(f"campaign {seed}")
    traffic = draw.choice(sorted(_TRAFFICS))
    ranks, per_host, ops = _TRAFFICS[traffic]
    jitter = draw.choice([0.01, 0.03])
    job = SimJob(ranks, ops, seed=seed, jitter=jitter, ranks_per_host=per_host)
    rank, at_s = draw.randrange(ranks), draw.uniform(*_HEALTHY_S)
    fault, syndrome, target = draw.choice(_FAULTS)(draw, job, rank, at_s)
    windows = []
    found = drive(job, [fault], at_s + _PATIENCE_S, windows=windows)
    # A dead NIC may come without its side: where it has stopped everything nothing tells whether the other one is well.
    named = {target, Component(target.kind, target.name)} if syndrome is _HANG else {target}
    ours = [d for d in found if not named.isdisjoint((d.component, *d.alternatives))]
    others = [d for d in found if d not in ours and not d.alternatives]
    right = bool(ours) and ours[0].syndrome == syndrome
    words = f"{seed}: {fault.kind} {fault.factor:.2f} {fault.side} of {target} on {traffic}, jitter {jitter}"
    said = tuple(f"{d.syndrome}: {d.component}" for d in found)
    return Trial(words, said, right, len(others), _graded(fault, syndrome, target, found, windows, job))


def _graded(fault, syndrome, target, found, windows, job):
    """The grade by the rules of the campaign in the lab."""
    until_s = fault.at_s + _PATIENCE_S
    loss = step_loss(windows, fault.at_s, until_s)
    times = fault.at_s, fault.at_s, until_s
    record = TrialRecord(
        "sim", str(fault.kind), syndrome, target, (), {}, *times, loss.share, loss.stopped, named_findings(found)
    )
    return grade(record, _fabric(job.ranks, job.ranks_per_host))


@cache
def _fabric(ranks, per_host):
    """All NICs on one switch: the simulator has no other links."""
    hosts = [FabricHost(f"h{n}", tuple(f"h{n}/{i}" for i in range(per_host))) for n in range(ranks // per_host)]
    nics = [(nic, f"10.{n}.{i}") for n, host in enumerate(hosts) for i, nic in enumerate(host.nics)]
    links = [FabricLink(nic, "switch", 0.0, f"{net}.254") for nic, net in nics]
    links += [FabricLink("switch", nic, 0.0, f"{net}.1") for nic, net in nics]
    return Measurable(Fabric((Switch("switch", 1),), tuple(hosts), tuple(links)))


def _nic_name(job, rank):
    return f"h{rank // job.ranks_per_host}/{rank % job.ranks_per_host}"


def _slow_nic(draw, job, rank, at_s):
    side = draw.choice(["tx", "rx"])
    fault = SimFault(SimFaultKind.NIC_RATE, rank, at_s, factor=draw.uniform(0.1, 0.9), side=side)
    return fault, _SLOW, Component("nic", _nic_name(job, rank), side)


def _slow_rank(draw, job, rank, at_s):
    least = 1.05 if job.jitter < 0.02 else 1.1
    fault = SimFault(SimFaultKind.COMPUTE, rank, at_s, factor=draw.uniform(least, 2.0))
    return fault, _LATE, Component("rank", f"job:{rank}")


def _dead_nic(draw, job, rank, at_s):
    side = draw.choice(["tx", "rx"])
    fault = SimFault(SimFaultKind.NIC_RATE, rank, at_s, factor=0.0, side=side)
    return fault, _HANG, Component("nic", _nic_name(job, rank), side)


def _gone(draw, job, rank, at_s):  # noqa: ARG001 (as the others)
    kind = draw.choice([SimFaultKind.STOPPED, SimFaultKind.HUNG, SimFaultKind.KILLED, SimFaultKind.RAISED])
    return SimFault(kind, rank, at_s), _GONE, Component("rank", f"job:{rank}")


def _mismatch(draw, job, rank, at_s):  # noqa: ARG001 (as the others)
    return SimFault(SimFaultKind.MISMATCH, rank, at_s), _GONE, Component("job", "job")


_FAULTS = (_slow_nic, _slow_nic, _slow_rank, _slow_rank, _dead_nic, _gone, _gone, _mismatch)
