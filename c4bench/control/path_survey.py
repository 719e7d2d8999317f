"""Learns paths by measuring: agents send probes, and where switches do not answer, their packet counters are read.

For counters, packets of one source port are sent with every TTL, equally many of each. The first link carries all of
them, the next all but those that expire before it, and so on. So the count shows a link's place in the path.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from c4bench.c4p.knowledge.atlas import Probe
from c4bench.c4p.knowledge.path_knowledge import Trace
from c4bench.control.switches import PortCount, carried_packets
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Nic
from c4bench.wire.messages import Burst, BurstRequest, Empty, ProbeAnswer, ProbeRequest
from c4bench.wire.peer import Peer

# A probe has about 60 bytes with its headers, so a NIC sends at most 5 Mbit/s of them.
RATE_PPS = 10_000.0
MAX_HOPS = 10  # switches on the longest path: two sites of three tiers have eight
_SILENCE_S = 0.1
# One switch that does not answer must not hide those behind it.
_SILENCES = 2
# Packets of each TTL: more than the switches' own traffic, and less than a millisecond of any link.
_PACKETS = 32
_SLACK = 0.2
_COUNTED_S = 0.05

Pair = tuple[Nic, Nic]
Read = Callable[[], Mapping[str, PortCount]]


class PathSurvey:
    """Traces through the agents; `agent` returns the connection to a host's agent."""

    def __init__(self, agent: Callable[[str], Peer]) -> None:
        self._agent = agent
        # A source port of a NIC can be traced to one destination at a time.
        self._busy: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def learn(
        self, pairs: Iterable[Pair], source_ports: Sequence[int], lengths: Mapping[tuple[str, str], int]
    ) -> dict[Probe, Trace]:
        """Trace all `source_ports` of these pairs; `lengths` are the known numbers of hops between NICs.

        NICs trace at the same time, each to one destination at a time, which limits the load on any link.
        """
        wanted = list(pairs)
        unknown = [pair for pair in wanted if not lengths.get(_names(pair))]
        known = dict(lengths) | await self._lengths(unknown, source_ports)
        ports = {pair: tuple(source_ports) for pair in wanted}
        return await self.trace(ports, known)

    async def trace(
        self, ports: Mapping[Pair, Sequence[int]], lengths: Mapping[tuple[str, str], int]
    ) -> dict[Probe, Trace]:
        """Trace these source ports of pairs with known lengths; a trace ends at a switch that does not answer."""
        by_source: dict[str, list[Pair]] = defaultdict(list)
        for pair in ports:
            by_source[pair[0].name].append(pair)
        traces: dict[Probe, Trace] = {}

        async def trace_all(mine: list[Pair]) -> None:
            for pair in mine:
                switches = lengths.get(_names(pair), 0) - 1
                # Without its agent a host's own pairs stay unknown, but no others.
                with suppress(UnhealthyError):
                    traces.update(await self._trace(pair, ports[pair], switches if switches > 0 else MAX_HOPS, 1))

        await asyncio.gather(*(self._alone(name, partial(trace_all, mine)) for name, mine in by_source.items()))
        return dict(sorted(traces.items()))

    async def burst(self, pair: Pair, bursts: Sequence[Burst]) -> None:
        """Send packets from a NIC to another's address, which switches count."""
        source, destination = pair
        request = BurstRequest(source.index, destination.address, tuple(bursts), RATE_PPS)
        await self._alone(source.name, partial(self._send, source.host, request))

    async def _send(self, host: str, request: BurstRequest) -> None:
        await self._agent(host).call("burst", request, Empty)

    async def _lengths(self, pairs: Sequence[Pair], source_ports: Sequence[int]) -> dict[tuple[str, str], int]:
        """Measure how many hops pairs are apart, with one port each and all destinations at the same time."""
        by_source: dict[str, list[Pair]] = defaultdict(list)
        for pair in pairs:
            by_source[pair[0].name].append(pair)
        lengths: dict[tuple[str, str], int] = {}

        async def measure(pair: Pair, port: int) -> None:
            with suppress(UnhealthyError):
                for hops in (await self._trace(pair, (port,), MAX_HOPS, _SILENCES)).values():
                    lengths[_names(pair)] = len(hops)

        async def measure_all(mine: list[Pair]) -> None:
            for first in range(0, len(mine), len(source_ports)):
                some = mine[first : first + len(source_ports)]
                await asyncio.gather(*(measure(pair, port) for pair, port in zip(some, source_ports, strict=False)))

        await asyncio.gather(*(self._alone(name, partial(measure_all, mine)) for name, mine in by_source.items()))
        return lengths

    async def _alone(self, nic: str, work: Callable[[], Awaitable[None]]) -> None:
        async with self._busy[nic]:
            await work()

    async def _trace(self, pair: Pair, ports: Sequence[int], max_hops: int, silences: int) -> dict[Probe, Trace]:
        source, destination = pair
        request = ProbeRequest(
            source.index, destination.address, tuple(ports), max_hops, _SILENCE_S, RATE_PPS, silences
        )
        answer = await self._agent(source.host).call("probe", request, ProbeAnswer)
        return {
            (source.name, destination.name, port): _links(hops, destination, max_hops)
            for port, hops in answer.hops.items()
        }


async def count_paths(
    survey: PathSurvey, read: Read, pairs: Sequence[Pair], source_ports: Sequence[int]
) -> dict[Probe, Trace]:
    """Learn all source ports of these pairs by the switches' counters, one port at a time; `read` may block.

    A port is left out if the counts fit no path: there was other traffic, or a switch is not read.
    """
    traces: dict[Probe, Trace] = {}
    before = await asyncio.to_thread(read)
    for pair in pairs:
        source, destination = pair
        for port in source_ports:
            await survey.burst(pair, [Burst(port, hops, _PACKETS) for hops in range(1, MAX_HOPS + 1)])
            await asyncio.sleep(_COUNTED_S)
            now = await asyncio.to_thread(read)
            if hops := counted_hops(carried_packets(before, now)):
                traces[source.name, destination.name, port] = (*hops, destination.address)
            before = now
    return traces


def counted_hops(carried: Mapping[str, int]) -> tuple[str, ...]:
    """The links of a path in order, from the packets that each has carried; empty if the counts do not fit a path."""
    busy = {hop: count / _PACKETS for hop, count in carried.items() if count > _PACKETS / 2}
    order = sorted(busy, key=lambda hop: -busy[hop])
    fits = all(abs(busy[hop] - (MAX_HOPS - place)) <= _SLACK for place, hop in enumerate(order))
    return tuple(order) if fits else ()


def _names(pair: Pair) -> tuple[str, str]:
    return pair[0].name, pair[1].name


def _links(hops: tuple[str, ...], destination: Nic, max_hops: int) -> Trace:
    """The directed links of a trace, each named by the address at its far end; None for a switch that did not answer.

    The destination's RDMA stack does not answer a probe. So if the distance was unknown, the last missing answers are
    the destination's; if it was known, every switch should have answered, and the last link leads to the destination.
    """
    answered = [hop or None for hop in hops]
    if max_hops == MAX_HOPS:
        while answered and answered[-1] is None:
            answered.pop()
        answered = answered or [None]
    return (*answered, destination.address)
