"""The switches' own packet counters by port, and the fabric drawn from their addresses.

A hop of the atlas is the address of a switch's ingress interface, so a port's received bytes are what crossed that
link. Switches are Linux hosts of the inventory's `switches` group. They are read with `ip`, whose counters are those of
the ports on Cumulus and plain Linux.

The kernel of a SONiC switch counts only packets that go to its processor. What its ports forward is in COUNTERS_DB,
which the switch refreshes every second unless set otherwise. Its reader is written from SONiC's documented tables
(`sonic-db-dump`, SAI's port counters); it has never run on hardware.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from c4bench.budget import SWITCH, Account, OverBudgetError
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.nic_links import nic_address
from c4bench.decoding import DecodingError, json_in, whole_number
from c4bench.errors import UnhealthyError
from c4bench.inventory import Inventory
from c4bench.model.fabric import Host
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch
from c4bench.remote import Connection
from c4bench.units import parse_rate

_TIMEOUT_S = 20.0
# A counter, of 63 bits: what has more is no count of a port.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_DUMP = ("sonic-db-dump", "-n", "COUNTERS_DB", "-k")
_PORT_NAMES = (*_DUMP, "COUNTERS_PORT_NAME_MAP")
# Object identifiers of ports begin so; those of queues and buffers, which are many more, do not.
_PORT_COUNTERS = (*_DUMP, "COUNTERS:oid:0x1000*")
_SONIC = f"command -v {_DUMP[0]}"
_RECEIVED, _SENT = "SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS"
_PACKETS = ("SAI_PORT_STAT_IF_IN_UCAST_PKTS", "SAI_PORT_STAT_IF_IN_NON_UCAST_PKTS")
_TABLE = "COUNTERS_PORT_NAME_MAP"


class _Entry(msgspec.Struct, frozen=True):
    value: dict[str, str] = {}


class PortCounters(msgspec.Struct, frozen=True):
    """What a port has received, in bytes and packets, and sent, in bytes."""

    received_bytes: int
    received_packets: int
    sent_bytes: int


def port_counters(switch: str, names: bytes, counters: bytes) -> dict[str, PortCounters]:
    """The counters by port, from the output of `_PORT_NAMES` and `_PORT_COUNTERS`; a port without counters is left out.

    Raises UnhealthyError if the output is of another form.
    """
    ports, rows = _decode(switch, names), _decode(switch, counters)
    found = {port: rows.get(f"COUNTERS:{oid}") for port, oid in ports.get(_TABLE, _Entry()).value.items()}
    try:
        return {port: _counted(row.value) for port, row in found.items() if row is not None and _RECEIVED in row.value}
    except DecodingError as error:
        raise UnhealthyError(f"{switch}: {_DUMP[0]} printed a counter that is none: {error}") from None


def _decode(switch: str, output: bytes) -> dict[str, _Entry]:
    try:
        Account(switch, SWITCH).spend(bytes=len(output))
        return json_in(output, dict[str, _Entry])
    except (DecodingError, OverBudgetError):
        raise UnhealthyError(
            f"{switch}: {_DUMP[0]} printed no counters: {output[:80]!r}; is this version of SONiC supported?"
        ) from None


def _counted(row: Mapping[str, str]) -> PortCounters:
    packets = sum(_number(row, name) for name in _PACKETS)
    return PortCounters(_number(row, _RECEIVED), packets, _number(row, _SENT))


def _number(row: Mapping[str, str], name: str) -> int:
    """A counter; 0 for one that the platform does not have (`N/A`). Raises DecodingError."""
    text = row.get(name, "")
    return whole_number(text) if text.isdecimal() else 0


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


class Switches:
    """The inventory's switches; `connect` opens a connection to one."""

    def __init__(self, inventory: Inventory, connect: Callable[[str], Connection]) -> None:
        self._inventory, self._connect = inventory, connect
        self._sonic: dict[str, bool] = {}

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
        answer = self._connect(switch).run([*inside, "ip", "-s", "-j", "address"], timeout_s=_TIMEOUT_S)
        interfaces = _decoded(switch, answer.stdout)
        counters = {port.ifname: _counters(port.stats64) for port in interfaces}
        counters |= {} if netns else self._from_database(switch)
        rates = {name: parse_rate(rate) for name, rate in self._inventory.facts[switch].rates.items()}
        return [
            (address.local, _count(switch, port.ifname, counters[port.ifname], rates))
            for port in interfaces
            for address in port.addr_info
            if not address.secondary
        ]

    def _from_database(self, switch: str) -> dict[str, PortCounters]:
        """The counters of a SONiC switch's ports; none for any other switch."""
        connection = self._connect(switch)
        if switch not in self._sonic:
            present = connection.run(["sh", "-c", _SONIC], timeout_s=_TIMEOUT_S, check=False)
            self._sonic[switch] = present.code == 0
        if not self._sonic[switch]:
            return {}
        commands = (_PORT_NAMES, _PORT_COUNTERS)
        return port_counters(switch, *(connection.run(argv, timeout_s=_TIMEOUT_S).stdout for argv in commands))


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
