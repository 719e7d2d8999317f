"""What came of a trial, held against the fault that was injected and the fabric that it was injected into."""

import itertools
import statistics
from typing import NamedTuple

import msgspec

from c4bench.model.diagnosis import Syndrome
from c4bench.model.measurement import Clock
from c4bench.model.recording import ProbingEnded
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch
from tools.campaign.grade import grades
from tools.campaign.step_time import step_loss
from tools.campaign.trial_record import TrialRecord, named_findings
from tools.campaign.truth import Truth
from tools.sim.windows import window_of


class Verdict(NamedTuple):
    """What came of a trial. `named`: the target is what C4D said, or among what it said cannot be told apart.

    `replayed`: the recording says the same as was said live. `record` is the trial as it is graded,
    `packets` were sent to end doubts, which took `load_fraction` of a NIC's rate at most.
    """

    trial: int
    traffic: str
    place: str
    jitter: float
    profile: str
    said: list
    syndrome: bool
    exact: bool
    named: bool
    healthy: int
    alarm_s: float | None
    name_s: float | None
    iterations: float | None
    period_s: float
    clock_error_s: float
    record: TrialRecord
    replayed: bool = False
    packets: int = 0
    load_fraction: float = 0.0

    @property
    def right(self):
        """Whether C4D was right: syndrome and component, or silence about what does not touch the job."""
        return (self.syndrome and self.named) if self.said else not self.record.matters

    @property
    def line(self):
        """The trial's line in `campaign.jsonl`."""
        known = {field: value for field, value in self._asdict().items() if field != "record"}
        return msgspec.to_builtins(self.record) | known | {"right": self.right}


def judged(trial, where, fault, said, windows, ports, fabric):
    """Hold what C4D said, until when, against the fault that was injected."""
    found, _ = said
    period_s, began_s = operations(windows, fault)
    record = recorded(trial, fault, said, windows, ports, began_s)
    truth = Truth(record, fabric)
    ours = [d for d in found if any(map(truth.same, d.suspects))]
    right = ours[0] if ours else found[0] if found else None
    # A finding with alternatives asks for probes; nobody isolates anything for it.
    sure = [d for d in found if d not in ours and not d.alternatives]
    # Where the fabric finds another way, what is left of the fault is slowness.
    syndromes = {fault.syndrome} if record.stopped else {fault.syndrome, Syndrome.COMMUNICATION_SLOW}
    name_s = None if right is None else right.named_s - began_s
    return Verdict(
        trial.number,
        trial.traffic,
        where,
        trial.jitter,
        trial.profile,
        [f"{d.syndrome}: {d.component}" + "".join(f" or {a}" for a in d.alternatives) for d in found],
        bool(ours) and ours[0].syndrome in syndromes,
        bool(ours) and truth.same(ours[0].component),
        bool(ours),
        sum(not truth.concerned(d.component) for d in sure),
        None if right is None else right.alarmed_s - began_s,
        name_s,
        None if right is None else name_s / period_s,
        period_s,
        fault.clock_error_s,
        record,
    )


def recorded(trial, fault, said, windows, ports, began_s):
    """The trial as it is graded."""
    found, until_s = said
    loss = step_loss(windows, fault.onset_s, until_s)
    return TrialRecord(
        trial.name,
        trial.fault,
        fault.syndrome,
        fault.target,
        named_as(fault.target, ports),
        trial.parameters,
        fault.onset_s,
        began_s,
        until_s,
        loss.share,
        loss.stopped,
        named_findings(found),
    )


def operations(windows, fault):
    """The job's period, and when the fault was there or, of a hang, first touched an operation."""
    ops = {(op.comm, op.rank, op.seq): op for window in windows for op in window.ops}.values()
    calls = sorted((op.comm, op.seq, op.entered_s) for op in ops)
    healthy = [op for op in ops if op.finished_s and op.finished_s < fault.onset_s]
    entered = {}
    for comm, seq, entered_s in calls:
        entered.setdefault(comm, {}).setdefault(seq, entered_s)
    gaps = [b - a for times in entered.values() for a, b in itertools.pairwise(times.values())]
    period_s = statistics.median(gaps)
    open_ops = [op for op in ops if not op.finished_s and op.entered_s > fault.onset_s - period_s]
    late = outlasting(healthy, [op for op in ops if op.finished_s > fault.onset_s])
    first = min((op.entered_s for op in [*open_ops, *late]), default=fault.observed_s)
    return period_s, max(fault.observed_s, first) if fault.syndrome.endswith("hang") else fault.observed_s


def outlasting(before, after):
    """Those of the operations after that took half as long again as any of the same rank before."""
    usual = {}
    for op in before:
        usual[op.comm, op.rank] = max(op.finished_s - op.entered_s, usual.get((op.comm, op.rank), 0.0))
    return [op for op in after if op.finished_s - op.entered_s > 1.5 * usual.get((op.comm, op.rank), float("inf"))]


def asked(records):
    """What asking has cost: packets and trains, and the largest share of a NIC's rate, as the master says it to C4D."""
    ended = [record for record in records if isinstance(record, ProbingEnded)]
    return sum(one.packets for one in ended), max((one.load_fraction for one in ended), default=0.0)


def ours(windows, clocks):
    """What hosts reported of operations and processes, with ends and operations on our clock."""

    def on_our_clock(window):
        ops = [
            msgspec.structs.replace(
                op,
                entered_s=clocks.ours(window.host, op.entered_s),
                finished_s=op.finished_s and clocks.ours(window.host, op.finished_s),
            )
            for op in window.ops
        ]
        end_s = clocks.ours(window.host, window.end_s)
        return window_of(window.host, window.sequence, window.start_s, end_s, ranks=window.ranks, ops=ops)

    return [on_our_clock(window) for window in windows]


def graded(verdicts, fabric):
    """The grade of each fault, read from the line of its trial as `python -m tools campaign` reads it."""
    tried = [msgspec.convert(verdict, TrialRecord) for verdict in verdicts]
    return [grade for trial in tried for grade in grades(trial, fabric)]


def shares(measure, kind, found, limits):
    """Measure the shares of answers of a `kind` of campaign, each with its interval, against the limits there are."""
    for name, share in (
        ("resolved", found.resolved),
        ("among", found.among),
        ("wrong", found.wrong),
        ("silent", found.silent),
    ):
        bounds = {"low": round(share.interval.low, 4), "high": round(share.interval.high, 4)}
        limit = limits.get(name, {})
        measure(f"{kind}.{name}_fraction", share.interval.mean, clock=Clock.NONE, **bounds, **limit)


def named_as(target, ports):
    """The addresses by which a target may be named, if it is a link or a switch."""
    return tuple(sorted(ports.addresses.get(target.name, ()))) if target.kind in {"link", "switch"} else ()


def drawn(ports, hosts):
    """The fabric by its switches' own addresses and those of their neighbours, without any path that was learnt."""
    nics = {nic.address: nic for host in hosts for nic in host.nics}
    owners = {address: name for name, own in ports.addresses.items() if "/" not in name for address in own}
    links = []
    for far, port in ports.leading.items():
        switch, nic = port.partition("/")[0], nics.get(far)
        links.append(FabricLink(switch, nic.name if nic else owners[far], nic.rate_bps if nic else 0.0, far))
        if nic:
            (near,) = ports.addresses[port] - {far}
            links.append(FabricLink(nic.name, switch, nic.rate_bps, near))
    return Fabric(
        tuple(Switch(switch, tier) for switch, tier in sorted(_tiers(links, nics.values()).items())),
        tuple(FabricHost(host.name, tuple(nic.name for nic in host.nics)) for host in hosts),
        tuple(sorted(links, key=lambda link: (link.source, link.target, link.hop))),
    )


def _tiers(links, nics):
    """The distance of each switch from the nearest NIC."""
    tiers, edge = {}, {nic.name for nic in nics}
    while edge:
        reached = {link.target for link in links if link.source in edge} - tiers.keys() - {nic.name for nic in nics}
        tiers |= dict.fromkeys(reached, max(tiers.values(), default=0) + 1)
        edge = reached
    return tiers
