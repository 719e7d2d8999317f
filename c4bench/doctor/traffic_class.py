"""Whether packets with the inventory's DSCP are queued without loss, and alike everywhere. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from c4bench.doctor.findings import HostSelfReport, Netdev
from c4bench.model.fabric import ECN_BITS, Host, Nic

# By DSCP, the priorities at which a host's interfaces or a switch's ports queue packets with it.
Queues = dict[int, tuple[int, ...]]


class Gap(NamedTuple):
    """Why a NIC's packets may be dropped, and the fix."""

    problem: str
    fix: str = ""


def gap(nic: Nic, facts: HostSelfReport) -> Gap | None:
    """The first reason found for a NIC, None if its packets have a priority with PFC."""
    forced = next((device.traffic_class for device in facts.rdma if device.name == nic.device), None)
    if forced is not None and forced >> ECN_BITS != nic.dscp:
        return Gap(
            f"tc/1/traffic_class of {nic.device} makes all its packets DSCP {forced >> ECN_BITS}, not {nic.dscp}",
            f"set `dscp: {forced >> ECN_BITS}` in c4, or correct the file",
        )
    netdev = facts.netdevs.get(nic.netdev)
    return _gap_of_port(nic, netdev) if netdev else Gap(f"no interface of {nic.name} is here")


def _gap_of_port(nic: Nic, netdev: Netdev) -> Gap | None:
    if netdev.pfc is None or not netdev.trust:
        return Gap("unknown: neither `dcb` nor `mlnx_qos` reports the priority of a DSCP")
    priority = _priority(nic, netdev)
    if priority is None:
        return Gap(f"{nic.netdev} trusts {netdev.trust}, not DSCP", f"mlnx_qos -i {nic.netdev} --trust dscp")
    if priority not in netdev.pfc:
        there = ",".join(map(str, netdev.pfc)) or "none"
        return Gap(
            f"DSCP {nic.dscp} has priority {priority} on {nic.netdev}, and PFC is on at {there}",
            "correct `dscp` in c4, or PFC and the priority of the DSCP on the host",
        )
    return None


def _priority(nic: Nic, netdev: Netdev) -> int | None:
    return netdev.priorities[nic.dscp] if netdev.trust == "dscp" else None


def queues(host: Host, facts: HostSelfReport) -> Queues:
    """The priorities of the inventory's DSCPs on a host, where they are known."""
    found: dict[int, set[int]] = defaultdict(set)
    for nic in host.nics:
        netdev = facts.netdevs.get(nic.netdev)
        priority = _priority(nic, netdev) if netdev else None
        if priority is not None:
            found[nic.dscp].add(priority)
    return {dscp: tuple(sorted(priorities)) for dscp, priorities in sorted(found.items())}


def disagreements(known: Mapping[str, Queues]) -> Iterator[str]:
    """DSCPs that hosts and switches, given by name, queue at different priorities."""
    for dscp in sorted({dscp for own in known.values() for dscp in own}):
        users: dict[int, list[str]] = defaultdict(list)
        for name, own in known.items():
            for priority in own.get(dscp, ()):
                users[priority].append(name)
        if len(users) > 1:
            listed = "; ".join(f"{priority} on {_some(names)}" for priority, names in sorted(users.items()))
            yield (
                f"DSCP {dscp} has different priorities: {listed}; a pause stops only its own priority, so correct the "
                "maps (mlnx_qos --dscp2prio, dcb app, DSCP_TO_TC_MAP)"
            )


def _some(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first
