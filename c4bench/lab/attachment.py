"""How a topology file's group of hosts is cabled to leaves: in blocks, by rail, by plane, or by bonds."""

from enum import StrEnum

import msgspec

from c4bench.errors import UsageError
from c4bench.model.graph import HostPort


class Attach(StrEnum):
    """Which leaf a NIC is cabled to.

    `block`: hosts in order, so many to a leaf, all NICs of a host together. `rail`: NIC r of every host on leaf r.
    `plane`: a host's NICs alternate between the two leaves of its block, one plane each. `bond`: each NIC is a bond of
    two ports, one on each of the two leaves of its host's block.
    """

    BLOCK = "block"
    RAIL = "rail"
    PLANE = "plane"
    BOND = "bond"


class HostGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many hosts, with how many NICs each, cabled how."""

    count: int
    nics: int = 1
    attach: Attach = Attach.BLOCK


def numbered(kind: str, count: int) -> tuple[str, ...]:
    """`leaf0`, `leaf1` and so on."""
    return tuple(f"{kind}{number}" for number in range(count))


def attach(group: HostGroup, leaves: tuple[str, ...], rate_bps: float) -> tuple[tuple[str, ...], list[HostPort]]:
    """The hosts' names and cables, each at `rate_bps`.

    Raises UsageError for hosts that do not divide among the leaves as asked for.
    """
    if problem := _problem(group, len(leaves)):
        raise UsageError(problem)
    hosts = numbered("h", group.count)
    ports = [
        HostPort(
            host,
            leaves[leaf],
            rate_bps,
            plane=nic if group.attach in (Attach.RAIL, Attach.PLANE) else 0,
            bond=f"bond{nic}" if group.attach is Attach.BOND else "",
        )
        for number, host in enumerate(hosts)
        for nic in range(group.nics)
        for leaf in _leaves_of(group, len(leaves), number, nic)
    ]
    return hosts, ports


def _problem(group: HostGroup, leaves: int) -> str:
    divided = leaves % 2 == 0 and group.count % (leaves // 2) == 0
    match group.attach:
        case Attach.RAIL if leaves != group.nics:
            return f"leaf.count: attach `rail` needs one leaf for each of the {group.nics} NICs"
        case Attach.PLANE if group.nics != 2 or not divided:
            return "hosts: attach `plane` needs 2 NICs a host, and hosts that divide among pairs of leaves"
        case Attach.BOND if not divided:
            return f"hosts.count: attach `bond`: {group.count} hosts do not divide among pairs of {leaves} leaves"
        case Attach.BLOCK if group.count % leaves:
            return f"hosts.count: {group.count} hosts do not divide among {leaves} leaves"
    return ""


def _leaves_of(group: HostGroup, leaves: int, host: int, nic: int) -> tuple[int, ...]:
    """The leaves that the ports of a NIC are cabled to."""
    match group.attach:
        case Attach.RAIL:
            return (nic,)
        case Attach.PLANE:
            return (2 * (host // (group.count // (leaves // 2))) + nic,)
        case Attach.BOND:
            first = 2 * (host // (group.count // (leaves // 2)))
            return first, first + 1
        case Attach.BLOCK:
            return (host // (group.count // leaves),)
