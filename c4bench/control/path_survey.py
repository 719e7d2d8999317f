"""Learn the fabric by probing: agents trace source ports from their NICs to others, and few probes at a time."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from c4bench.c4p.atlas import Probe
from c4bench.c4p.path_knowledge import Trace
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Nic
from c4bench.wire.messages import Burst, BurstRequest, Empty, ProbeAnswer, ProbeRequest
from c4bench.wire.peer import Peer

# A probe is about 60 bytes with its headers: a NIC sends 5 Mbit/s of them at most.
RATE_PPS = 10_000.0
_MAX_HOPS = 6
_SILENCE_S = 0.1
# One switch that does not answer does not hide those behind it.
_SILENCES = 2

Pair = tuple[Nic, Nic]


class PathSurvey:
    """Traces through the agents; `agent` gives the line to a host's."""

    def __init__(self, agent: Callable[[str], Peer]) -> None:
        self._agent = agent
        # A source port of a NIC can be traced to one destination at a time.
        self._busy: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def learn(
        self, pairs: Iterable[Pair], source_ports: Sequence[int], lengths: Mapping[tuple[str, str], int]
    ) -> dict[Probe, Trace]:
        """All `source_ports` of these pairs; `lengths` are the hops between NICs as far as they are known.

        NICs trace side by side, each one destination at a time, which bounds the load on any link.
        """
        wanted = list(pairs)
        unknown = [pair for pair in wanted if not lengths.get(_names(pair))]
        known = dict(lengths) | await self._lengths(unknown, source_ports)
        ports = {pair: tuple(source_ports) for pair in wanted}
        return await self.trace(ports, known)

    async def trace(
        self, ports: Mapping[Pair, Sequence[int]], lengths: Mapping[tuple[str, str], int]
    ) -> dict[Probe, Trace]:
        """These source ports of pairs whose lengths are known; a trace ends where a switch stays silent."""
        by_source: dict[str, list[Pair]] = defaultdict(list)
        for pair in ports:
            by_source[pair[0].name].append(pair)
        found: dict[Probe, Trace] = {}

        async def of(mine: list[Pair]) -> None:
            for pair in mine:
                switches = lengths.get(_names(pair), 0) - 1
                # A host without an agent leaves its own pairs unknown, and no others.
                with suppress(UnhealthyError):
                    found.update(await self._ask(pair, ports[pair], switches if switches > 0 else _MAX_HOPS, 1))

        await asyncio.gather(*(self._alone(name, of(mine)) for name, mine in by_source.items()))
        return dict(sorted(found.items()))

    async def burst(self, pair: Pair, bursts: Sequence[Burst]) -> None:
        """Send packets from a NIC to another's address, for switches to count."""
        source, destination = pair
        request = BurstRequest(source.index, destination.address, tuple(bursts), RATE_PPS)
        await self._alone(source.name, self._send(source.host, request))

    async def _send(self, host: str, request: BurstRequest) -> None:
        await self._agent(host).call("burst", request, Empty)

    async def _lengths(self, pairs: Sequence[Pair], source_ports: Sequence[int]) -> dict[tuple[str, str], int]:
        """How many hops pairs are apart: one port each, all destinations at a time, since a trace ends in silence."""
        by_source: dict[str, list[Pair]] = defaultdict(list)
        for pair in pairs:
            by_source[pair[0].name].append(pair)
        found: dict[tuple[str, str], int] = {}

        async def of(pair: Pair, port: int) -> None:
            with suppress(UnhealthyError):
                for hops in (await self._ask(pair, (port,), _MAX_HOPS, _SILENCES)).values():
                    found[_names(pair)] = len(hops)

        async def all_of(mine: list[Pair]) -> None:
            for first in range(0, len(mine), len(source_ports)):
                some = mine[first : first + len(source_ports)]
                await asyncio.gather(*(of(pair, port) for pair, port in zip(some, source_ports, strict=False)))

        await asyncio.gather(*(self._alone(name, all_of(mine)) for name, mine in by_source.items()))
        return found

    async def _alone(self, nic: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with self._busy[nic]:
                await work
        finally:
            # Cancelled in the queue, it has never begun.
            work.close()

    async def _ask(self, pair: Pair, ports: Sequence[int], max_hops: int, silences: int) -> dict[Probe, Trace]:
        source, destination = pair
        request = ProbeRequest(
            source.index, destination.address, tuple(ports), max_hops, _SILENCE_S, RATE_PPS, silences
        )
        answer = await self._agent(source.host).call("probe", request, ProbeAnswer)
        return {
            (source.name, destination.name, port): _links(hops, destination, max_hops)
            for port, hops in answer.hops.items()
        }


def _names(pair: Pair) -> tuple[str, str]:
    return pair[0].name, pair[1].name


def _links(hops: tuple[str, ...], destination: Nic, max_hops: int) -> Trace:
    """The directed links of a trace, each named by the address at its far end; None for one that stayed silent.

    The destination's RDMA stack drops a probe without a word. So where it was not known how far it is, the last
    silences are its arrival; where it was, every switch should have answered, and the last link leads to it.
    """
    answered = [hop or None for hop in hops]
    if max_hops == _MAX_HOPS:
        while answered and answered[-1] is None:
            answered.pop()
        answered = answered or [None]
    return (*answered, destination.address)
