"""A fabric as its cables: which NIC is on which switch, and which switches are joined."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

import msgspec


class HostPort(msgspec.Struct, frozen=True):
    """The cable of a NIC: between `host` and `switch`, at `rate_bps`; packets take `delay_s` each way.

    `nic` is the NIC's index, -1 for the host's next one, and `port` the switch's port, "" if not stated. `position` is
    the place among a file's links, -1 if the cable does not come from such a list. A host's cables with the same `bond`
    are the ports of one NIC; a cable without has a NIC of its own.
    """

    host: str
    switch: str
    rate_bps: float
    delay_s: float = 0.0
    plane: int = 0
    nic: int = -1
    port: str = ""
    position: int = -1
    bond: str = ""

    @property
    def ends(self) -> tuple[str, str]:
        """The names at its ends, the host first."""
        return self.host, self.switch


class Trunk(msgspec.Struct, frozen=True):
    """A cable between two switches, at `rate_bps`; packets take `delay_s` each way.

    `a_port` and `b_port` are the ports at its ends, "" if not stated; `position` is as in `HostPort`.
    """

    a: str
    b: str
    rate_bps: float
    delay_s: float = 0.0
    a_port: str = ""
    b_port: str = ""
    position: int = -1

    @property
    def ends(self) -> tuple[str, str]:
        """The names at its ends."""
        return self.a, self.b


class FabricGraph(msgspec.Struct, frozen=True):
    """A fabric's switches, hosts and cables. Two cables between the same switches are two trunks."""

    switches: tuple[str, ...]
    hosts: tuple[str, ...]
    host_ports: tuple[HostPort, ...]
    trunks: tuple[Trunk, ...]

    @property
    def cables(self) -> list[HostPort | Trunk]:
        """All cables, those of NICs first."""
        return [*self.host_ports, *self.trunks]


def by_nic(cables: Iterable[HostPort]) -> list[tuple[HostPort, ...]]:
    """The cables of each NIC, in the order of the first."""
    together: dict[tuple[str, str | int], list[HostPort]] = defaultdict(list)
    for number, cable in enumerate(cables):
        together[cable.host, cable.bond or number].append(cable)
    return [tuple(of_nic) for of_nic in together.values()]


def neighbours(graph: FabricGraph) -> dict[str, list[str]]:
    """The switches at the other ends of each switch's trunks, one entry for each trunk."""
    joined: dict[str, list[str]] = defaultdict(list)
    for trunk in graph.trunks:
        joined[trunk.a].append(trunk.b)
        joined[trunk.b].append(trunk.a)
    return joined


def tiers_of(graph: FabricGraph) -> dict[str, int]:
    """The distance of each switch from the nearest host, in links; a switch that reaches none is left out."""
    return distances(dict.fromkeys(port.switch for port in graph.host_ports), neighbours(graph), first=1)


def distances(starts: Iterable[str], joined: Mapping[str, Iterable[str]], first: int = 0) -> dict[str, int]:
    """The distance of each switch that can be reached from the nearest of `starts`, which count `first`."""
    found = dict.fromkeys(starts, first)
    queue = deque(found)
    while queue:
        here = queue.popleft()
        for there in joined.get(here, ()):
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found
