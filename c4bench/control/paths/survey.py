"""Sends probes by the agents on hosts, and bursts of packets that switches count."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, starmap
from typing import NamedTuple, TypeVar

from c4bench.budget import HOST
from c4bench.c4p.knowledge.atlas import Probe, Question
from c4bench.c4p.knowledge.hash_inquiry import QpQuestion
from c4bench.c4p.knowledge.path_knowledge import Trace
from c4bench.c4p.knowledge.path_search import PathSearch
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.model.fabric import Arrived, HopAnswer, HopProbe, Nic, NumberedFlow, Train
from c4bench.model.recording import Delivery, TimedFlow
from c4bench.verbs.probe import CLOSED_PORT, ROCE_PORT
from c4bench.wire.messages import Empty
from c4bench.wire.peer import Peer
from c4bench.wire.probes import (
    Burst,
    BurstRequest,
    Heard,
    HeardRequest,
    ListenRequest,
    NumberRequest,
    ProbeAnswer,
    ProbeRequest,
)

# A probe has about 60 bytes with its headers, so a NIC sends at most 5 Mbit/s of them.
RATE_PPS = 10_000.0
_SILENCE_S = 0.1
# Packets that are late by this are lost; counters close by themselves after a while.
_ARRIVE_S = 0.06
_LISTEN_S = 5.0
# A shaper lets 16 KiB pass at once, so a train has more; trains take this share of a NIC's rate while they are sent,
# and at least so many bit/s: from slow NICs, as labs have, they would take seconds.
_TRAIN_BYTES = 64 << 10
_TRAIN_SHARE, _TRAIN_BPS = 0.004, 20e6
_tokens = count(1)
_ANY_TTL = 64
_ADDRESS_AT_MOST, _TTL_AT_MOST = 64, 255
# Packets start with one of these TTLs, and each switch takes one off.
_INITIAL_TTLS = (64, 128, 255)

NicPair = tuple[Nic, Nic]
Body = TypeVar("Body")


class _Numbered(NamedTuple):
    """How many numbered packets or trains of `train_bytes` a NIC sends on each flow, and how many a second in all."""

    packets: int
    rate_pps: float
    train_bytes: int = 0

    def lasts_s(self, flows: int) -> float:
        """How long it takes to send them, about."""
        return flows * self.packets / self.rate_pps


class PathSurvey:
    """Sends probes by the agents; `agent` returns the connection to a host's agent."""

    def __init__(self, agent: Callable[[str], Peer]) -> None:
        self._agent = agent
        # A source port of a NIC can be probed to one purpose at a time.
        self._busy: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def count_switches(self, pairs: Iterable[NicPair], source_port: int) -> dict[tuple[str, str], int]:
        """The number of switches between NICs, by the TTL with which the destination's answer arrives.

        A pair whose destination does not answer is left out.
        """
        by_source: dict[Nic, list[Nic]] = defaultdict(list)
        for source, destination in pairs:
            by_source[source].append(destination)
        switches: dict[tuple[str, str], int] = {}

        async def ask(source: Nic, destinations: Sequence[Nic]) -> None:
            probes = [HopProbe(nic.address, source_port, _ANY_TTL) for nic in destinations]
            with suppress(UnhealthyError):
                for nic, answer in zip(destinations, await self._send(source, probes, CLOSED_PORT), strict=True):
                    if answer.address == nic.address and answer.ttl:
                        switches[source.name, nic.name] = _switches_crossed(answer.ttl)

        await asyncio.gather(
            *(self._alone(source.name, partial(ask, source, found)) for source, found in by_source.items())
        )
        return switches

    async def search_round(
        self,
        search: PathSearch,
        asking: Iterable[str],
        nics: Mapping[str, Nic],
        note_answers: Callable[[str, Sequence[str], float, Sequence[Question]], None],
    ) -> None:
        """Run a round of a search by these NICs.

        `note_answers` is called with a NIC, the hops that answered it, the time, and where switches were silent.
        """

        async def ask(source: Nic) -> None:
            try:
                while questions := search.questions(source.name):
                    met = await self._ask(source, questions, nics)
                    silent = [question for question, hop in met if not hop]
                    note_answers(source.name, [hop for _, hop in met if hop], time.time(), silent)
                    for question, hop in met:
                        search.record(question, hop)
            except UnhealthyError:
                search.give_up(source.name)

        await asyncio.gather(*(self._alone(name, partial(ask, nics[name])) for name in asking))

    async def check(self, questions: Iterable[Question], nics: Mapping[str, Nic]) -> dict[Question, str]:
        """The addresses that answer, "" for none; questions of hosts without an agent are left out."""
        by_source: dict[str, list[Question]] = defaultdict(list)
        for question in questions:
            by_source[question.pair[0]].append(question)
        answers: dict[Question, str] = {}

        async def ask(source: Nic, mine: Sequence[Question]) -> None:
            with suppress(UnhealthyError):
                answers.update(await self._ask(source, mine, nics))

        await asyncio.gather(*(self._alone(name, partial(ask, nics[name], mine)) for name, mine in by_source.items()))
        return dict(sorted(answers.items()))

    async def _ask(
        self, source: Nic, questions: Sequence[Question], nics: Mapping[str, Nic]
    ) -> list[tuple[Question, str]]:
        """The questions of a NIC with the addresses that answered, "" for none."""
        probes = [HopProbe(nics[one.pair[1]].address, one.source_port, one.position + 1) for one in questions]
        answers = await self._send(source, probes)
        return [(question, answer.address) for question, answer in zip(questions, answers, strict=True)]

    async def ask_qps(self, questions: Sequence[QpQuestion], nics: Mapping[str, Nic]) -> dict[QpQuestion, str]:
        """The addresses that answer, "" for none; questions of hosts without an agent are left out."""
        by_source: dict[str, list[QpQuestion]] = defaultdict(list)
        for question in questions:
            by_source[question.pair[0]].append(question)
        answers: dict[QpQuestion, str] = {}

        async def ask(source: Nic, mine: Sequence[QpQuestion]) -> None:
            probes = [HopProbe(nics[one.pair[1]].address, one.source_port, one.position + 1) for one in mine]
            with suppress(UnhealthyError):
                answered = await self._send(source, probes, qps=tuple(one.qp for one in mine))
                answers.update({one: answer.address for one, answer in zip(mine, answered, strict=True)})

        await asyncio.gather(*(self._alone(name, partial(ask, nics[name], mine)) for name, mine in by_source.items()))
        return dict(sorted(answers.items()))

    async def trace(self, switches: Mapping[Probe, int], nics: Mapping[str, Nic]) -> dict[Probe, Trace]:
        """The switches that source ports lead over, so many each; a trace ends at one that does not answer."""
        hops: dict[Probe, tuple[str | None, ...]] = dict.fromkeys(switches, ())
        for position in range(max(switches.values(), default=0)):
            asked = {
                Question((source, destination), port, position): (source, destination, port)
                for (source, destination, port), found in hops.items()
                if len(found) == position < switches[source, destination, port] and None not in found
            }
            for question, address in (await self.check(asked, nics)).items():
                hops[asked[question]] += (address or None,)
        return {probe: found for probe, found in sorted(hops.items()) if found}

    async def burst(self, pair: NicPair, bursts: Sequence[Burst], qp: int = 0) -> None:
        """Send packets from a NIC to another's address, which switches count; with `qp`, by a queue pair to that one.

        Raises UnhealthyError if the agent cannot.
        """
        source, destination = pair
        request = BurstRequest(source.index, destination.address, tuple(bursts), RATE_PPS, source.traffic_class, qp)
        await self._alone(source.name, partial(self._burst, source.host, request))

    async def deliver(self, flows: Iterable[Probe], nics: Mapping[str, Nic], packets: int) -> tuple[Delivery, ...]:
        """Send numbered packets on flows, so many `packets` of each kind, and return what arrived.

        Flows of hosts whose agents cannot send or count are left out. Nothing is returned if nothing arrives anywhere:
        these NICs may not show such packets.
        """
        heard = await self._number(flows, nics, lambda _: _Numbered(packets, RATE_PPS))
        seen = any(one.data or one.acks for one in heard.values())
        return tuple(
            Delivery(*flow, packets, *(min(max(0, count), packets) for count in (one.data, one.acks, one.late)))
            for flow, one in heard.items()
            if seen
        )

    async def time_trains(self, flows: Iterable[Probe], nics: Mapping[str, Nic], trains: int) -> tuple[TimedFlow, ...]:
        """Send so many packet `trains` on each of the flows, and return how they arrived.

        Flows of hosts whose agents cannot send or count are left out.
        """

        def at_most(nic: Nic) -> _Numbered:
            bps = max(_TRAIN_SHARE * nic.rate_bps, _TRAIN_BPS)
            return _Numbered(trains, bps / (8 * _TRAIN_BYTES), _TRAIN_BYTES)

        heard = await self._number(flows, nics, at_most)
        timed: list[TimedFlow] = []
        for flow, one in heard.items():
            rate_bps, arrived = min(nics[end].rate_bps for end in flow[:2]), filter(_is_timed, one.trains[:trains])
            timed.append(TimedFlow(*flow, rate_bps, _TRAIN_BYTES, trains, tuple(arrived)))
        return tuple(timed)

    async def _number(
        self, flows: Iterable[Probe], nics: Mapping[str, Nic], numbered: Callable[[Nic], "_Numbered"]
    ) -> dict[Probe, Arrived]:
        """What arrived on each flow of what is `numbered`, a NIC's flows in turn."""
        token = next(_tokens)
        by_source: dict[Nic, list[Probe]] = defaultdict(list)
        for flow in flows:
            by_source[nics[flow[0]]].append(flow)
        ends = sorted({flow[1] for mine in by_source.values() for flow in mine})
        longest_s = max((numbered(nic).lasts_s(len(mine)) for nic, mine in by_source.items()), default=0.0)
        counting = await asyncio.gather(*(self._listen(nics[name], token, longest_s + _LISTEN_S) for name in ends))
        heard_at = [name for name, counts in zip(ends, counting, strict=True) if counts]

        async def send(source: Nic, mine: Sequence[Probe]) -> list[Probe]:
            to = tuple(NumberedFlow(nics[destination].address, port) for _, destination, port in mine)
            count, rate_pps, train_bytes = numbered(source)
            request = NumberRequest(source.index, to, count, token, rate_pps, source.traffic_class, train_bytes)
            try:
                async with self._busy[source.name]:
                    await self._call(source.host, "number", request, Empty)
            except UnhealthyError:
                return []
            return list(mine)

        sent = [flow for mine in await asyncio.gather(*starmap(send, by_source.items())) for flow in mine]
        await asyncio.sleep(_ARRIVE_S)
        heard = await asyncio.gather(*(self._heard(nics[name], token) for name in heard_at))
        arrived = {name: found for name, found in zip(heard_at, heard, strict=True) if found is not None}
        by_port = {flow: (nics[flow[0]].address, flow[2]) for flow in sorted(sent) if flow[1] in arrived}
        return {flow: arrived[flow[1]].get(port, Arrived(*port, 0, 0, 0)) for flow, port in by_port.items()}

    async def _listen(self, nic: Nic, token: int, within_s: float) -> bool:
        """Have a NIC's agent count numbered packets; return whether it does."""
        with suppress(UnhealthyError):
            await self._call(nic.host, "listen", ListenRequest(nic.index, token, within_s), Empty)
            return True
        return False

    async def _heard(self, nic: Nic, token: int) -> dict[tuple[str, int], Arrived] | None:
        """What arrived at a NIC, by the sender's address and source port. None if its agent does not say."""
        with suppress(UnhealthyError):
            heard = await self._call(nic.host, "heard", HeardRequest(nic.index, token), Heard)
            return {(one.source, one.source_port): one for one in heard.arrived}
        return None

    async def _burst(self, host: str, request: BurstRequest) -> None:
        await self._call(host, "burst", request, Empty)

    async def _alone(self, nic: str, work: Callable[[], Awaitable[None]]) -> None:
        async with self._busy[nic]:
            await work()

    async def _send(
        self, source: Nic, probes: Sequence[HopProbe], to_port: int = ROCE_PORT, qps: tuple[int, ...] = ()
    ) -> Sequence[HopAnswer]:
        request = ProbeRequest(source.index, tuple(probes), _SILENCE_S, RATE_PPS, to_port, source.traffic_class, qps)
        answer = await self._call(source.host, "probe", request, ProbeAnswer)
        if len(answer.answers) != len(probes):
            raise UnhealthyError(
                f"{source.host} answered {len(answer.answers)} of {len(probes)} probes; is its agent old?"
            )
        if wrong := next((one for one in answer.answers if not _is_answer(one)), None):
            raise UnhealthyError(
                f"{source.host} says that {one_line(wrong.address, 80)!r} answered with TTL {wrong.ttl}"
            )
        return answer.answers

    async def _call(self, host: str, method: str, request: object, answer: type[Body]) -> Body:
        """Ask an agent. Raises UnhealthyError, also if it does not answer in time."""
        try:
            async with asyncio.timeout(HOST.seconds):
                return await self._agent(host).call(method, request, answer)
        except TimeoutError:
            raise UnhealthyError(f"{host}: its agent has not answered {method!r} for {HOST.seconds:g} s") from None


def _is_answer(answer: HopAnswer) -> bool:
    """Whether an answer to a probe can be one: an agent may say anything."""
    address = answer.address
    plain = address.isascii() and address.isprintable() and not set(address) & set(" /<>|")
    return plain and len(address) <= _ADDRESS_AT_MOST and 0 <= answer.ttl <= _TTL_AT_MOST


def _is_timed(train: Train) -> bool:
    """Whether its times are numbers: an agent may say anything."""
    return math.isfinite(train.delay_s) and math.isfinite(train.s_per_byte)


def _switches_crossed(ttl: int) -> int:
    """The switches that a packet has crossed, by the TTL it arrives with."""
    return min(initial for initial in _INITIAL_TTLS if initial >= ttl) - ttl
