"""The ports of a SONiC switch, and what the lab knows of their cables."""

import msgspec

from c4bench.lab.guest import fabric
from c4bench.lab.topology import Link, Port, Topology

_SERDES = 4  # of a port; SONiC calls them lanes


class Neighbour(msgspec.Struct, frozen=True):
    """An address at the far end of a cable, with its MAC address."""

    address: str
    mac: str


class SwitchPort(msgspec.Struct, frozen=True):
    """A port by SONiC's name, counted by `index` from 1; its addresses have a prefix length."""

    name: str
    index: int
    cable: Port | Link
    addresses: tuple[str, ...]
    neighbour: Neighbour

    @property
    def alias(self) -> str:
        """The name on the front of the switch."""
        return f"etp{self.index}"

    @property
    def serdes(self) -> str:
        """The numbers of its serial links (SONiC's `lanes`), with commas."""
        return ",".join(str(number) for number in range(_SERDES * (self.index - 1), _SERDES * self.index))

    @property
    def speed_mbps(self) -> int:
        """The rate of its cable."""
        return round(self.cable.rate_bps / 1e6)


class Layout(msgspec.Struct, frozen=True):
    """A switch as the lab has built it: name, management address, place in the fabric, ports in order."""

    name: str
    address: str
    number: int
    tier: int
    ports: tuple[SwitchPort, ...]

    @property
    def mac(self) -> str:
        """The MAC address of the switch itself."""
        return f"02:c6:00:00:00:{self.number:02x}"


def layout_of(topology: Topology, switch: str) -> Layout:
    """The switch of that name."""
    number, known = next((n, one) for n, one in enumerate(topology.switches) if one.name == switch)
    found: list[tuple[str, Port | Link, tuple[str, ...], Neighbour]] = []
    for port in topology.ports:
        if port.switch == switch:
            addresses = tuple(f"{address}/24" for address in port.switch_addresses)
            far = Neighbour(port.nic.address, fabric.nic_mac(port, switch_end=False))
            found.append((port.interface, port, addresses, far))
    for link in topology.links:
        for near in (end for end in link.ends if end.switch == switch):
            end = link.far_end(switch)
            far = Neighbour(end.address, fabric.link_mac(link, end))
            found.append((near.interface, link, (f"{near.address}/30",), far))
    found.sort(key=lambda one: number_of(one[0]))
    ports = tuple(SwitchPort(one[0], index, *one[1:]) for index, one in enumerate(found, 1))
    return Layout(switch, topology.management(switch), number, known.tier, ports)


def number_of(port: str) -> int:
    """The number in a port's name, by which SONiC sorts; -1 for what is no port."""
    number = port.removeprefix("Ethernet")
    return int(number) if number.isdecimal() and number != port else -1
