"""The links that lead to NICs: their names as hops, their capacities, and the planes of bonds' ports. Pure.

A hop is the address at the far end of a link, and so a NIC's link is named by the NIC's address. A bond has one address
and a link to each of its ports: their names add the switch that they come from. A switch is called by its name where
the switches' ports are known, else by the address at which packets entered it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from c4bench.c4p.knowledge.atlas import Probe
from c4bench.model.fabric import Nic

_FROM = "@"


def is_port(hop: str) -> bool:
    """Whether a hop is the link to one port of a bond."""
    return _FROM in hop


class NicLinks:
    """The links that lead to these NICs."""

    def __init__(self, nics: Iterable[Nic]) -> None:
        self._nics = {nic.name: nic for nic in nics}
        self._switches: Mapping[str, str] = {}

    def name_switches(self, switches: Mapping[str, str]) -> None:
        """Call switches by these names from now on, by the addresses of their ports."""
        self._switches = switches

    def cables(self, nic: str) -> int:
        """How many cables a NIC has."""
        return self._nics[nic].cables

    def last_hop(self, nic: str, entry: str | None) -> str:
        """The link to a NIC from the switch that packets enter at the address `entry`; None where that is not known."""
        if self.cables(nic) == 1 or entry is None:
            return self._nics[nic].address
        return f"{self._nics[nic].address}{_FROM}{self._switches.get(entry.partition('%')[0], entry)}"

    def capacities(self) -> dict[str, float]:
        """The rates of these links, bit/s by hop, as far as they and the names of switches are known."""
        names = sorted(set(self._switches.values()))
        rates: dict[str, float] = {}
        for nic in (nic for nic in self._nics.values() if nic.rate_bps):
            ends = [f"{nic.address}{_FROM}{name}" for name in names] if nic.bond else [nic.address]
            rates |= dict.fromkeys(ends, nic.cable_bps)
        return rates


# The number of the port by which a bond sends from a NIC to another, from a source port.
LeavingPort = Callable[[Nic, Nic, int], int]


class BondPlanes:
    """The planes of the links to and from bonds: port i of every bond is in plane i.

    `leaving` tells by which port a path begins, and so at which switch that port is. What a switch receives from a bond
    and sends to it are links of one port. A bond whose ports cannot be told apart, such as while one is down, keeps the
    planes that were found before.
    """

    def __init__(self, nics: Mapping[str, Nic], links: NicLinks, leaving: LeavingPort) -> None:
        self._nics, self._links, self._leaving = nics, links, leaving
        self._planes: dict[str, int] = {}

    def by_hop(self, traces: Mapping[Probe, tuple[str | None, ...]]) -> Mapping[str, int]:
        """The planes that are known with these paths, by hop."""
        ports: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for (source, destination, source_port), hops in traces.items():
            near, far = self._nics.get(source), self._nics.get(destination)
            if hops and hops[0] is not None and near and far and near.cables > 1:
                ports[source][hops[0]].add(self._leaving(near, far, source_port))
        for nic, found in ports.items():
            if all(len(numbers) == 1 for numbers in found.values()) and len(set.union(*found.values())) == len(found):
                for hop, (plane,) in found.items():
                    self._planes |= {hop: plane, self._links.last_hop(nic, hop): plane}
        return MappingProxyType(dict(self._planes))
