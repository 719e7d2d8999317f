"""The switches' own packet counters by port, and the fabric drawn from their addresses.

A hop of the atlas is the address of a switch's ingress interface, so a port's received bytes are what crossed that
link. Switches are Linux hosts of the inventory's `switches` group. They are read with `ip`, whose counters are those of
the ports on Cumulus and plain Linux; other systems, such as SONiC, have readers of their own (`c4.counters`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from c4bench import extensions
from c4bench.budget import SWITCH, Account, OverBudgetError
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.nic_links import nic_address
from c4bench.control import sonic_counters
from c4bench.control.sonic_counters import PortCounters
from c4bench.decoding import DecodingError, json_in
from c4bench.errors import UnhealthyError
from c4bench.inventory import Inventory
from c4bench.model.fabric import Host
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch
from c4bench.remote import Connection
from c4bench.units import parse_rate

_TIMEOUT_S = 20.0
# A counter, of 63 bits: what has more is no count of a port.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Address(msgspec.Struct, frozen=True):
    local: str = ""
    secondary: bool = False


class _Counters(msgspec.Struct, frozen=True):
    bytes: Count = 0
    packets: Count = 0


class _Statistics(msgspec.Struct, frozen=True):
    rx: _Counters = _Counters()
    tx: _Counters = _Counters()


class _Interface(msgspec.Struct, frozen=True):
    ifname: str = ""
    addr_info: tuple[_Address, ...] = ()
    stats64: _Statistics = _Statistics()


class PortCount(msgspec.Struct, frozen=True):
    """What a switch port has carried since it came up; `rate_bps` is its rate by the inventory, 0 if not stated."""

    switch: str
    interface: str
    received_bytes: int
    received_packets: int
    rate_bps: float = 0.0
    sent_bytes: int = 0


# What a switch's own counters are, by port, given its name and what runs a command there and returns its output.
CounterReader = Callable[[str, Callable[[Sequence[str]], bytes]], Mapping[str, PortCounters]]
_KERNEL, _SONIC = "ip", "sonic"
READERS: extensions.Registry[CounterReader] = extensions.Registry(
    extensions.SWITCHES,
    "a function (switch, output) that returns counters by port",
    lambda: {_KERNEL: lambda switch, output: {}, _SONIC: sonic_counters.read},  # noqa: ARG005  (`ip` has told)
    extensions.takes(2),
)


class Switches:
    """The inventory's switches; `connect` opens a connection to one.

    Raises UsageError for a reader of counters that the inventory names and nobody has.
    """

    def __init__(self, inventory: Inventory, connect: Callable[[str], Connection]) -> None:
        self._inventory, self._connect = inventory, connect
        named = {switch: inventory.facts[switch].counters for switch in inventory.switches}
        self._readers = {
            switch: extensions.find(READERS, f"reader of {switch}'s counters", name)
            for switch, name in named.items()
            if name
        }

    @property
    def any(self) -> bool:
        """Whether the inventory names switches at all."""
        return bool(self._inventory.switches)

    def ports(self) -> dict[str, PortCount]:
        """Every port with an address, by its primary one. Raises UnhealthyError if a switch does not answer."""
        return {address: count for switch in self._inventory.switches for address, count in self._ports_of(switch)}

    def _ports_of(self, switch: str) -> list[tuple[str, PortCount]]:
        netns = self._inventory.access[switch].netns
        inside = ["nsenter", f"--net={netns}"] if netns else []
        connection = self._connect(switch)
        answer = connection.run([*inside, "ip", "-s", "-j", "address"], timeout_s=_TIMEOUT_S)
        interfaces = _decoded(switch, answer.stdout)
        counters = {port.ifname: _counters(port.stats64) for port in interfaces}
        counters |= self._own_counters(switch, connection)
        rates = {name: parse_rate(rate) for name, rate in self._inventory.facts[switch].rates.items()}
        return [
            (address.local, _count(switch, port.ifname, counters[port.ifname], rates))
            for port in interfaces
            for address in port.addr_info
            if not address.secondary
        ]

    def _own_counters(self, switch: str, connection: Connection) -> Mapping[str, PortCounters]:
        """What the switch's own reader tells; nothing where the kernel's counters are those of the ports."""
        if switch not in self._readers:
            self._readers[switch] = READERS[self._system(switch, connection)]
        return self._readers[switch](switch, lambda argv: connection.run(argv, timeout_s=_TIMEOUT_S).stdout)

    def _system(self, switch: str, connection: Connection) -> str:
        """The reader of a switch for which the inventory names none."""
        if self._inventory.access[switch].netns:
            return _KERNEL
        asked = ["sh", "-c", sonic_counters.PRESENT]
        return _KERNEL if connection.run(asked, timeout_s=_TIMEOUT_S, check=False).code else _SONIC


def _decoded(switch: str, output: bytes) -> tuple[_Interface, ...]:
    """What `ip` printed. Raises UnhealthyError, which names the switch."""
    try:
        Account(switch, SWITCH).spend(bytes=len(output))
        return json_in(output, tuple[_Interface, ...])
    except (DecodingError, OverBudgetError) as error:
        raise UnhealthyError(f"{switch}: what ip -j address printed cannot be read: {error}") from None


def _counters(statistics: _Statistics) -> PortCounters:
    return PortCounters(statistics.rx.bytes, statistics.rx.packets, statistics.tx.bytes)


def _count(switch: str, interface: str, counters: PortCounters, rates: Mapping[str, float]) -> PortCount:
    carried = counters.received_bytes, counters.received_packets
    return PortCount(switch, interface, *carried, rates.get(interface, 0.0), counters.sent_bytes)


def carried_bytes(before: Mapping[str, PortCount], after: Mapping[str, PortCount]) -> dict[str, int]:
    """Bytes that crossed each link between two readings, by the link's hop address."""
    return _risen(
        {hop: count.received_bytes - before[hop].received_bytes for hop, count in after.items() if hop in before}
    )


def carried_packets(before: Mapping[str, PortCount], after: Mapping[str, PortCount]) -> dict[str, int]:
    """Packets that crossed each link between two readings, by the link's hop address."""
    return _risen(
        {hop: count.received_packets - before[hop].received_packets for hop, count in after.items() if hop in before}
    )


def _risen(changes: Mapping[str, int]) -> dict[str, int]:
    """Changes of counters; a counter that has begun again since says nothing."""
    return {hop: change for hop, change in changes.items() if change >= 0}


def drawn(hosts: Iterable[Host], atlas: Atlas, ports: Mapping[str, PortCount]) -> Fabric:
    """The fabric as probing found it, with the known names of switches, for the report's drawing."""
    names = {hop: port.switch for hop, port in ports.items()}
    nics = {nic.address: nic for host in hosts for nic in host.nics}
    rates = {nic.name: nic.rate_bps for nic in nics.values()}
    links: dict[str, FabricLink] = {}
    tiers: dict[str, int] = {}
    for source, destination in atlas.pairs:
        for path in atlas.paths(source, destination):
            here = source
            for position, hop in enumerate(path.hops):
                end = nics.get(nic_address(hop))
                there = end.name if end else names.get(hop, hop)
                links.setdefault(hop, FabricLink(here, there, rates[source], hop))
                if end is None:
                    tiers[there] = min(tiers.get(there, 9), min(position, len(path.hops) - 2 - position) + 1)
                here = there
    return Fabric(
        switches=tuple(Switch(name, tier) for name, tier in sorted(tiers.items())),
        hosts=tuple(FabricHost(host.name, tuple(nic.name for nic in host.nics)) for host in hosts),
        links=tuple(links[hop] for hop in sorted(links)),
    )
