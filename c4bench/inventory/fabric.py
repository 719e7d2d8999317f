"""The fabric's graph as the inventory states it: the variable `c4_fabric`, and the leaves of `c4.nics`.

`c4_fabric` is a variable of its own, because a host's `c4` replaces that of its groups as a whole. It describes one
fabric, so it must be the same wherever it is stated.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec

from c4bench.inventory.cables import Cable, GraphError, Limits, check, expand
from c4bench.inventory.facts import HostFacts
from c4bench.inventory.groups import Resolved, Variable, convert
from c4bench.model.fabric import Host, Nic
from c4bench.model.graph import FabricGraph, HostPort, by_nic
from c4bench.units import format_rate, parse_rate

VARIABLE = "c4_fabric"
LIMITS = Limits(
    what="a fabric",
    name=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    naming="use up to 64 letters, digits, dots, hyphens and underscores",
    hosts=(1, 16384),
    nics=64,
    bond_ports=8,
    switches=4096,
    ports=1024,
    trunks=1 << 17,
    rates=("1mbit", "3200gbit"),
    delay_s=10.0,
)


class FabricFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variable `c4_fabric`: every cable, and the switches that are not in the inventory's group `switches`.

    A host's NICs are numbered in the order of its links. A host's links may be left out where `c4.nics[].leaf` has
    them.
    """

    links: tuple[Cable, ...]
    switches: tuple[str, ...] = ()


def read(
    resolved: Resolved, hosts: Sequence[Host], facts: Mapping[str, HostFacts], switches: Sequence[str]
) -> FabricGraph | None:
    """The stated graph; None if the inventory states none. Raises UsageError naming file, line and key.

    Without `c4_fabric`, it has only the cables of NICs, if their leaves are stated.
    """
    leaves = {nic_of(port): port for host in hosts for port in _leaf_ports(host, facts[host.name])}
    variable = _variable(resolved)
    if variable is None:
        names = (tuple(dict.fromkeys(ends)) for ends in zip(*(port.ends for port in leaves.values()), strict=True))
        cabled, used = names if leaves else ((), ())
        return FabricGraph(used, cabled, tuple(leaves.values()), ()) if leaves else None
    stated = convert(variable, FabricFacts, {"links": Cable})
    try:
        graph = _graph(stated, hosts, switches, leaves)
        check(_rated(graph), LIMITS)
    except GraphError as error:
        raise variable.error(error.problem, error.keys) from None
    nics = {nic.name: nic for host in hosts for nic in host.nics}
    for cables in by_nic(graph.host_ports):
        name = nic_of(cables[0])
        if problem := _contradiction(cables, leaves.get(name), nics.get(name)):
            raise _of_nic(resolved, cables[0], hosts).error(f"{problem}; correct {VARIABLE} or c4.nics")
    return graph


def nic_of(port: HostPort) -> str:
    """The name of the NIC that a cable of a read graph ends at."""
    return f"{port.host}/{port.nic}"


def _variable(resolved: Resolved) -> Variable | None:
    found: Variable | None = None
    for variables in resolved.hosts.values():
        own = variables.get(VARIABLE)
        if own and found and own.value != found.value:
            raise own.error("differs from that of another host; state the fabric once, in all.vars")
        found = found or own
    return found


def _graph(
    stated: FabricFacts, hosts: Sequence[Host], switches: Sequence[str], leaves: Mapping[str, HostPort]
) -> FabricGraph:
    """The graph with every NIC's index; cables that `c4_fabric` leaves out are those of `leaves`."""
    ports, trunks = expand(stated.links, {host.name for host in hosts})
    numbered = [_with_port(port, leaves.get(nic_of(port))) for port in _numbered(ports, hosts)]
    known = {nic_of(port) for port in numbered}
    numbered += [port for nic, port in leaves.items() if nic not in known]
    used = {name for ends in (*(port.ends for port in numbered), *(trunk.ends for trunk in trunks)) for name in ends}
    cabled = tuple(host.name for host in hosts if host.nics or host.name in used)
    own = tuple(name for name in switches if name in used and name not in stated.switches)
    return FabricGraph((*stated.switches, *own), cabled, tuple(numbered), trunks)


def _numbered(ports: Sequence[HostPort], hosts: Sequence[Host]) -> Iterator[HostPort]:
    """The cables with the index of their NIC: as stated, else the host's next one that is not.

    The ports of a bond have one index; one of them may state it.
    """
    indices = {host.name: [nic.index for nic in host.nics] for host in hosts}
    stated = {nic_of(port) for port in ports}
    free = {host: _unstated(host, own or count(), stated) for host, own in indices.items()}
    bonded = {(port.host, port.bond): port.nic for port in ports if port.bond and port.nic >= 0}
    for port in ports:
        own, keys = indices[port.host], ("links", port.position)
        known = port.nic if port.nic >= 0 else bonded.get((port.host, port.bond), -1)
        if port.nic >= 0 and own and port.nic not in own:
            raise GraphError(keys, f"{port.host} has no NIC {port.nic} in c4.nics; correct one of the two")
        if (nic := known if known >= 0 else next(free[port.host], None)) is None:
            raise GraphError(keys, f"{port.host} has {len(own)} NICs in c4.nics and more links here; correct either")
        if port.bond:
            bonded.setdefault((port.host, port.bond), nic)
        yield msgspec.structs.replace(port, nic=nic)


def _unstated(host: str, indices: Iterable[int], stated: Collection[str]) -> Iterator[int]:
    return (index for index in indices if f"{host}/{index}" not in stated)


def _leaf_ports(host: Host, facts: HostFacts) -> Iterator[HostPort]:
    """The cables that `c4.nics[].leaf` states."""
    for nic, stated in zip(host.nics, facts.nics, strict=True):
        leaf, _, port = stated.leaf.partition("/")
        if leaf:
            yield HostPort(host.name, leaf, nic.rate_bps, plane=nic.plane, nic=nic.index, port=port)


def _with_port(port: HostPort, leaf: HostPort | None) -> HostPort:
    """The cable with the switch port that `c4.nics[].leaf` states, if it has none itself."""
    return msgspec.structs.replace(port, port=leaf.port) if leaf and not port.port else port


def _rated(graph: FabricGraph) -> FabricGraph:
    """The graph with some valid rate for the cables whose NIC states none."""
    rate_bps = parse_rate(LIMITS.rates[0])
    ports = tuple(
        port if port.position >= 0 or port.rate_bps else msgspec.structs.replace(port, rate_bps=rate_bps)
        for port in graph.host_ports
    )
    return msgspec.structs.replace(graph, host_ports=ports)


def _contradiction(cables: Sequence[HostPort], leaf: HostPort | None, nic: Nic | None) -> str:
    """What `c4.nics` states otherwise of a NIC's cables, "" for nothing."""
    port, rate_bps = cables[0], sum(cable.rate_bps for cable in cables)
    if leaf and (leaf.switch != port.switch or (leaf.port and leaf.port != port.port)):
        return f"{nic_of(port)} is at {port_of(leaf)} here and at {port_of(port)} in {VARIABLE}"
    if nic and nic.cables != len(cables):
        return f"{nic_of(port)} has {nic.cables} ports here and {len(cables)} links in {VARIABLE}"
    if nic and nic.rate_bps and nic.rate_bps != rate_bps:
        return f"{nic_of(port)} has {format_rate(nic.rate_bps)} here and {format_rate(rate_bps)} in {VARIABLE}"
    return ""


def port_of(port: HostPort) -> str:
    """The switch's end of a NIC's cable, with the port if it is stated."""
    return f"{port.switch}/{port.port}" if port.port else port.switch


def _of_nic(resolved: Resolved, port: HostPort, hosts: Sequence[Host]) -> Variable:
    """The entry of a cable's NIC in its host's `c4`."""
    (host,) = (host for host in hosts if host.name == port.host)
    of = resolved.hosts[port.host]["c4"]
    return Variable(None, (*of.keys, "nics", host.nics.index(host.nic(port.nic))), of.document)
