"""Hangs by hosts that are silent, and by ports that are down: NICs that report it, and the switch that they share."""

from collections.abc import Collection, Iterable, Mapping

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.nic_counters import OFF, NicView
from c4bench.c4d.observe.shared_fabric import PathLinks, switches
from c4bench.c4d.thresholds import REPORTED_CADENCES
from c4bench.model.diagnosis import Cause, Component, Syndrome

# At most one in this many hosts may be silent at once; else the network to the master is suspect.
_SILENT_SHARE = 4


def silent_hosts(hosts: Iterable[str], clocks: HostClocks, since_s: float) -> set[str]:
    """Those of `hosts` not heard of since `since_s` (master's clock).

    Empty when many are silent: then the network to the master is broken, and nothing is known of them.
    """
    every = set(hosts)
    silent = {host for host in every if clocks.last_heard_s(host) < since_s}
    return silent if len(silent) <= max(1, len(every) // _SILENT_SHARE) else set()


def silent_host_finding(host: str, clocks: HostClocks, since_s: float, observed_s: float) -> Finding:
    """The finding on a host that reports nothing while its ranks are awaited."""
    heard_s = clocks.last_heard_s(host)
    return Finding(
        Syndrome.COMMUNICATION_HANG,
        Cause.HOST_SILENT,
        Component("host", host),
        since_s,
        confidence(),
        (f"no telemetry from {host} since {heard_s:.3f} s while its ranks are awaited",),
        f"a window from {host}",
        {"silent_s": observed_s - heard_s},
    )


def ports_down(job: JobView, clocks: HostClocks) -> dict[str, NicView]:
    """The job's NICs whose ports went down and whose ranks have done nothing since.

    A rank that went on had other NICs, or its port came back in time.
    """
    slack_s = REPORTED_CADENCES * clocks.cadence_s()
    fell = {nic: (view, view.fell_s) for nic, view in job.devices.items() if view.fell_s is not None}
    if not fell:
        return {}
    users = job.users()
    return {
        nic: view
        for nic, (view, fell_s) in sorted(fell.items())
        if nic in users and all(job.members.acted_s(rank, fell_s) <= fell_s + slack_s for rank in users[nic])
    }


def port_findings(job: JobView, clocks: HostClocks, fell: Mapping[str, NicView]) -> list[Finding]:
    """A switch if all of its ports that the job uses went down; else the suspects of each NIC's port.

    A switch of which the job uses one port only is among the suspects of that.
    """
    verdicts, single = [], dict(fell)
    cabled = _switches(job.paths, job.users())
    for switch, below in cabled.items():
        hosts = {fell[nic].host for nic in below if nic in single}
        if len(hosts) > 1 and below <= single.keys():
            verdicts.append(_verdict(clocks, {nic: single.pop(nic) for nic in sorted(below)}, [switch]))
    for nic, view in single.items():
        alone = [switch for switch, below in cabled.items() if below == {nic}]
        verdicts.append(_verdict(clocks, {nic: view}, _ends(job.paths, nic, view, alone)))
    return verdicts


def _switches(paths: PathLinks, nics: Collection[str]) -> dict[Component, frozenset[str]]:
    """The switches that NICs are cabled to, named by their lowest address."""
    before: dict[str, set[str]] = {}
    for (_, destination, _), hops in paths.items():
        if len(hops) > 1 and destination in nics:
            before.setdefault(destination, set()).add(hops[-2])
    return {Component("switch", min(one.addresses)): one.cabled for one in switches(before)}


def _ends(paths: PathLinks, nic: str, view: NicView, alone: Iterable[Component]) -> list[Component]:
    """The suspects of a port that is down: the NIC if it was switched off, else any part of its link.

    `alone` is a switch that the job sees nothing else of.
    """
    if view.fell_to == OFF:
        return [Component("nic", nic)]
    links = sorted({hops[-1] for (_, destination, _), hops in paths.items() if destination == nic and hops})
    return [*(Component("link", link) for link in links), Component("nic", nic), *alone]


def _verdict(clocks: HostClocks, fell: Mapping[str, NicView], suspects: Iterable[Component]) -> Finding:
    component, *others = suspects
    onset_s = min(view.fell_s + clocks.offset_s(view.host) for view in fell.values() if view.fell_s is not None)
    evidence = tuple(f"{nic} says that its port went down ({view.fell_to})" for nic, view in fell.items())
    return Finding(
        Syndrome.COMMUNICATION_HANG,
        Cause.PORT_DOWN,
        component,
        onset_s - clocks.cadence_s(),
        confidence(),
        evidence,
        f"a rank that goes on by {', '.join(fell)}",
        {"ports_down": float(len(fell))},
        tuple(others),
    )
