"""What the switches' own packet counters show: ports, the traffic of links, paths, and the fabric's drawing.

A hop of the atlas is the address of a switch's ingress interface, so a port's received bytes are what crossed that
link. Switches are Linux hosts of the inventory's `switches` group. They are read with `ip`, whose counters are those of
the ports on Cumulus and plain Linux; other systems, such as SONiC, have readers of their own (`c4.counters`).

The kernel of a SONiC switch counts only packets that go to its processor, such as our own session's. What its ports
forward is in COUNTERS_DB, which the switch refreshes every second unless set otherwise, and which is therefore waited
for; an interface that is not there has carried nothing. Packets are those to one receiver: switches greet each other
with others (LLDP). The reader is written from SONiC's documented tables (`sonic-db-dump`, SAI's port counters); it has
never run on hardware.

Where switches answer few probes or none, counters find a path: packets of one source port are sent with every TTL,
equally many of each. The first link carries all of them, the next all but those that expire before it, and so on. So
the count shows a link's place in the path. Where all paths of a pair are known, packets that do not expire show which
of them it is.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from c4bench import extensions
from c4bench.budget import SWITCH, Account, OverBudgetError
from c4bench.c4p.knowledge.atlas import Pair, Probe
from c4bench.c4p.knowledge.path_knowledge import Trace
from c4bench.c4p.knowledge.path_search import MAX_SWITCHES, PathSearch
from c4bench.control.paths.survey import PathSurvey
from c4bench.decoding import DecodingError, json_in, whole_number
from c4bench.errors import Periodic, UnhealthyError
from c4bench.inventory import Inventory
from c4bench.model.fabric import LinkLoad, Nic
from c4bench.remote import Connection
from c4bench.units import parse_rate
from c4bench.wire.probes import Burst

_TIMEOUT_S = 20.0
# A counter, of 63 bits: what has more is no count of a port.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_DUMP = ("sonic-db-dump", "-n", "COUNTERS_DB", "-k")
_PORT_NAMES = (*_DUMP, "COUNTERS_PORT_NAME_MAP")
# Object identifiers of ports begin so; those of queues and buffers, which are many more, do not.
_PORT_COUNTERS = (*_DUMP, "COUNTERS:oid:0x1000*")
_SONIC = f"command -v {_DUMP[0]}"
_RECEIVED, _SENT = "SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS"
_PACKETS = "SAI_PORT_STAT_IF_IN_UCAST_PKTS"
_TABLE = "COUNTERS_PORT_NAME_MAP"
_REFRESHED_S = 1.1  # SONiC's interval, and what the refresh itself takes
# Packets of each TTL: more than the switches' own traffic, and less than a millisecond of any link.
_OF_EACH_TTL = 32
_TTLS = range(1, MAX_SWITCHES + 1)
# Packets that cross all of a path.
_WHOLE, _ANY_TTL = 128, 64
_SLACK = 0.2
_COUNTED_S = 0.05
# Between two readings, so that bytes can be divided by it.
_SHORTEST_S = 1e-3


class _Entry(msgspec.Struct, frozen=True):
    value: dict[str, str] = {}


class PortCounters(msgspec.Struct, frozen=True):
    """What a port has received, in bytes and packets, and sent, in bytes."""

    received_bytes: int
    received_packets: int
    sent_bytes: int


_NOTHING = PortCounters(0, 0, 0)


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
    return PortCounters(_number(row, _RECEIVED), _number(row, _PACKETS), _number(row, _SENT))


def _number(row: Mapping[str, str], name: str) -> int:
    """A counter; 0 for one that the platform does not have (`N/A`). Raises DecodingError."""
    text = row.get(name, "")
    return whole_number(text) if text.isdecimal() else 0


def _sonic(switch: str, output: Callable[[Sequence[str]], bytes]) -> dict[str, PortCounters]:
    """The counters by port of a SONiC switch; `output` runs a command there. Raises UnhealthyError."""
    return port_counters(switch, output(_PORT_NAMES), output(_PORT_COUNTERS))


def _none(switch: str, output: Callable[[Sequence[str]], bytes]) -> dict[str, PortCounters]:  # noqa: ARG001
    """Nothing beside what `ip` has shown: the kernel's counters are those of the ports."""
    return {}


# What a switch's own counters are, by port, given its name and what runs a command there and returns its output.
CounterReader = Callable[[str, Callable[[Sequence[str]], bytes]], Mapping[str, PortCounters]]
READERS: extensions.Registry[CounterReader] = extensions.Registry(
    extensions.SWITCHES,
    "a function (switch, output) that returns counters by port",
    lambda: {"ip": _none, "sonic": _sonic},
    extensions.takes(2),
)


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


Read = Callable[[], Mapping[str, PortCount]]
# Given the bytes of each link, and the seconds in which it carried them.
Ingest = Callable[[Mapping[str, int], float], Awaitable[None]]


class Switches:
    """The inventory's switches; `connect` opens a connection to one, `wait` sleeps for so many seconds.

    Raises UsageError for a reader of counters that the inventory names and nobody has.
    """

    def __init__(
        self,
        inventory: Inventory,
        connect: Callable[[str], Connection],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inventory, self._connect, self._wait = inventory, connect, wait
        self._connections: dict[str, Connection] = {}
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
        """Every port with an address, by its primary one, of several ports the first.

        What has been carried until now is counted, also by switches that refresh their counters only now and then.
        Raises UnhealthyError if a switch does not answer.
        """
        if any(self._reader(switch) is _sonic for switch in self._inventory.switches):
            self._wait(_REFRESHED_S)
        found: dict[str, PortCount] = {}
        try:
            for switch in self._inventory.switches:
                for address, count in self._ports_of(switch):
                    found.setdefault(address, count)
        except UnhealthyError:
            self._connections.clear()  # one may have restarted
            raise
        return found

    def _ports_of(self, switch: str) -> list[tuple[str, PortCount]]:
        netns = self._inventory.access[switch].netns
        inside = ["nsenter", f"--net={netns}"] if netns else []
        connection = self._connection(switch)
        answer = connection.run([*inside, "ip", "-s", "-j", "address"], timeout_s=_TIMEOUT_S)
        interfaces = _decoded(switch, answer.stdout)
        reader = self._reader(switch)
        counters = {port.ifname: _NOTHING if reader is _sonic else _counters(port.stats64) for port in interfaces}
        counters |= reader(switch, lambda argv: connection.run(argv, timeout_s=_TIMEOUT_S).stdout)
        rates = {name: parse_rate(rate) for name, rate in self._inventory.facts[switch].rates.items()}
        return [
            (address.local, _count(switch, port.ifname, counters[port.ifname], rates))
            for port in interfaces
            for address in port.addr_info
            if not address.secondary
        ]

    def _connection(self, switch: str) -> Connection:
        """The connection to a switch, which stays open: to read its counters again and again takes little then."""
        if switch not in self._connections:
            self._connections[switch] = self._connect(switch)
        return self._connections[switch]

    def _reader(self, switch: str) -> CounterReader:
        """What reads the switch's own counters; it finds none where those of the kernel are the ports'."""
        if switch not in self._readers:
            self._readers[switch] = READERS[self._system(switch)]
        return self._readers[switch]

    def _system(self, switch: str) -> str:
        """The reader of a switch for which the inventory names none."""
        if self._inventory.access[switch].netns:
            return "ip"
        asked = ["sh", "-c", _SONIC]
        return "ip" if self._connection(switch).run(asked, timeout_s=_TIMEOUT_S, check=False).code else "sonic"


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


class PathCounter:
    """Counts the path of one source port at a time; `read` reads the switches' counters and may block."""

    def __init__(self, survey: PathSurvey, read: Read, nics: Mapping[str, Nic]) -> None:
        self._survey, self._read, self._nics = survey, read, nics
        self._before: Mapping[str, PortCount] | None = None

    async def hops(self, pair: Pair, source_port: int) -> tuple[str, ...]:
        """The links between switches on a path, in order; none if the counts fit no path.

        There was other traffic then, or a switch is not read.
        """
        return counted_hops(await self._carried(pair, [Burst(source_port, ttl, _OF_EACH_TTL) for ttl in _TTLS]))

    async def links(self, pair: Pair, source_port: int) -> frozenset[str]:
        """The links between switches that a path crosses. No packet expires, so that no switch spends an answer."""
        carried = await self._carried(pair, [Burst(source_port, _ANY_TTL, _WHOLE)])
        return frozenset(hop for hop, count in carried.items() if abs(count / _WHOLE - 1) <= _SLACK)

    async def _carried(self, pair: Pair, bursts: Sequence[Burst]) -> dict[str, int]:
        before = await asyncio.to_thread(self._read) if self._before is None else self._before
        await self._survey.burst((self._nics[pair[0]], self._nics[pair[1]]), bursts)
        await asyncio.sleep(_COUNTED_S)
        self._before = now = await asyncio.to_thread(self._read)
        return carried_packets(before, now)

    def forget_reading(self) -> None:
        """Others have sent packets since the last count."""
        self._before = None


async def count_paths(counter: PathCounter, search: PathSearch) -> dict[Probe, Trace]:
    """Find what a search looks for by the switches' counters alone; ports whose counts fit no path are left out."""
    traces: dict[Probe, Trace] = {}
    while search.open_pairs:
        search.begin_round(time.monotonic())
        for pair, port in search.open_ports():
            search.record_path(pair, port, await counter.hops(pair, port))
        traces |= {probe: hops for probe, hops in search.end_round(time.monotonic()).items() if None not in hops}
    return traces


def counted_hops(carried: Mapping[str, int]) -> tuple[str, ...]:
    """The links of a path in order, from the packets that each has carried; empty if the counts do not fit a path."""
    busy = {hop: count / _OF_EACH_TTL for hop, count in carried.items() if count > _OF_EACH_TTL / 2}
    order = sorted(busy, key=lambda hop: -busy[hop])
    fits = all(abs(busy[hop] - (MAX_SWITCHES - place)) <= _SLACK for place, hop in enumerate(order))
    return tuple(order) if fits else ()


class CountedTraffic:
    """All traffic that switches counted on each link between their last two readings."""

    def __init__(self) -> None:
        self._carried_bps: Mapping[str, float] = {}
        self._before: Mapping[str, PortCount] = {}
        self._began_s = 0.0

    async def watch(self, read: Read, every_s: float, ingest: Ingest | None = None) -> None:
        """Read the switches until cancelled. Any `ingest` is called with the bytes of each link, and their seconds."""
        self._before, self._began_s = {}, time.monotonic()
        periodic = Periodic("reading the switches' counters, without which other traffic is not seen,")

        async def look() -> None:
            await self._read(read, ingest)

        while True:
            if not await periodic.round(look):
                self._before, self._carried_bps = {}, {}
            await asyncio.sleep(every_s)

    async def _read(self, read: Read, ingest: Ingest | None) -> None:
        now, now_s = await asyncio.to_thread(read), time.monotonic()
        carried, over_s = carried_bytes(self._before, now), max(now_s - self._began_s, _SHORTEST_S)
        self._before, self._began_s = now, now_s
        self._carried_bps = {hop: 8 * count / over_s for hop, count in carried.items()}
        if carried and ingest:
            await ingest(carried, over_s)

    def beside(self, planned: Mapping[str, LinkLoad], rates_bps: Mapping[str, float]) -> dict[str, LinkLoad]:
        """The planned loads with the counted ones, and other links of known rate on which traffic was counted."""
        counted = [hop for hop, bps in self._carried_bps.items() if bps and hop in rates_bps]
        others = {hop: LinkLoad(0.0, 0, rates_bps[hop]) for hop in counted}
        loads = others | dict(planned)
        return {hop: replace(load, carried_bps=self._carried_bps.get(hop)) for hop, load in loads.items()}
