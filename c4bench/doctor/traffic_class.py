"""Whether packets with the inventory's DSCP are queued without loss on a host. Pure."""

from typing import NamedTuple

from c4bench.doctor.findings import HostSelfReport, Netdev
from c4bench.model.fabric import ECN_BITS, Nic


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
