"""Finds out what switches hash, and where that is queue pairs too, by which source ports these take their paths.

C4P plans by source ports on the 5-tuple, and by a source port for each queue pair where switches hash the destination
QP too. Where equal packets take different paths it plans nothing, and says so.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from c4bench.c4p.controller import PathController
from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Pair, Question
from c4bench.c4p.knowledge.hash_inquiry import QP, SWITCHES, UNLIKE, HashFinding, HashInquiry, QpQuestion, confirmed
from c4bench.c4p.knowledge.path_checks import AnswerLimits
from c4bench.c4p.knowledge.qp_paths import QpPaths, Wanted
from c4bench.control.paths.survey import PathSurvey
from c4bench.control.paths.switches import Read, carried_packets
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import ADAPTIVE, DEST_QP, FIVE_TUPLE, Hash, Nic
from c4bench.wire.probes import Burst

_logger = logging.getLogger(__name__)

_KNOBS = {FIVE_TUPLE: "UDP source ports", DEST_QP: "a UDP source port of each queue pair"}

# A switch that is silent is asked again when it has an answer left, by Linux's limits.
_AGAIN_S, _ATTEMPTS = 1.1, 3
_CANDIDATES = 16
# Questions at once and for so many seconds, by which a switch's limits show; it gives more than none in that time.
_BURST, _SECONDS, _LEAST = 8, 8, 0.5
_EACH_S = 1.0
# Packets of a queue pair that switches count: more than their own traffic, and no more than go without an answer.
_PACKETS, _ANY_TTL, _COUNTED_S = 64, 64, 0.05
# How long ports of queue pairs are looked for; flows that have none then are left to ECMP.
_PORTS_WITHIN_S, _PORTS_AGAIN_S = 20.0, 0.25


class HashFinder:
    """What the switches of a fabric hash; found out once, when paths are first asked for, unless it is `stated`."""

    def __init__(
        self,
        controller: PathController,
        survey: PathSurvey,
        nics: Mapping[str, Nic],
        source_port: int,
        stated: Hash | None = None,
        read: Read | None = None,
    ) -> None:
        self._controller, self._survey, self._nics = controller, survey, nics
        self._source_port, self._read, self._stated = source_port, read, stated is not None
        self._finding: HashFinding | None = None
        self._asking = asyncio.Lock()
        self._measuring: asyncio.Task[None] | None = None
        self._without_choice: set[Pair] = set()
        if stated:
            self._note(HashFinding(stated, f"the inventory states it (c4.hash: {stated})"))

    @property
    def refusal(self) -> str:
        """Why no paths can be chosen; "" if they can, or if that is not known."""
        finding = self._finding
        if finding is None or not (finding.hash == ADAPTIVE or finding.reason == UNLIKE):
            return ""
        return f"paths cannot be chosen on this fabric: {finding.reason}"

    @property
    def by_qp(self) -> bool:
        """Whether a source port leads another way for each queue pair."""
        return self._finding is not None and self._finding.hash == DEST_QP

    async def find(self, pairs: Sequence[Pair]) -> None:
        """Find it out by packets between some NICs, of these pairs and of others, unless it is known."""
        async with self._asking:
            if self._finding is not None:
                return
            switches = await self._switches({*pairs[:_CANDIDATES], *self._across()} - self._without_choice)
            if max(switches.values(), default=SWITCHES) < SWITCHES:
                # All paths of these are one, whatever is hashed.
                self._without_choice |= switches.keys()
            if not switches.keys() - self._without_choice and self._without_choice:
                return
            await self._learn_limits(list(switches)[-1:])
            finding = await self._inquire(switches)
            if finding.hash == ADAPTIVE:
                # Routes may have changed meanwhile.
                finding = await self._inquire(switches)
            self._note(finding)

    async def _learn_limits(self, pairs: Sequence[Pair]) -> None:
        """Learn by one NIC's first switch how many answers switches give at once, and then each second."""
        for pair in pairs:
            question = QpQuestion(pair, self._source_port, 0, QP)
            burst = [await self._is_answered(question) for _ in range(_BURST)].count(True)
            if 0 < burst < _BURST:
                self._measuring = asyncio.create_task(self._measure_rate(question, burst))

    async def _measure_rate(self, question: QpQuestion, burst: int) -> None:
        """Ask the switch, which has no answers left now, once a second."""
        answered = 0
        for _ in range(_SECONDS):
            await asyncio.sleep(_EACH_S)
            answered += await self._is_answered(question)
        # Some answers may be lost, and others have spent some: what is about Linux's limits is taken for these.
        usual = AnswerLimits()
        if burst < usual.burst - 1 or answered < _SECONDS // 2:
            limits = AnswerLimits(burst, max(answered, _LEAST) / _SECONDS)
            self._controller.set_answer_limits(limits)
            rate = f"{limits.burst:g} answers at once, then {limits.per_s:.2g} a second"
            _logger.info("a switch gives %s: C4P asks all of them accordingly", rate)

    async def _is_answered(self, question: QpQuestion) -> bool:
        return any((await asked(self._survey, self._controller, [question], self._nics)).values())

    def _note(self, finding: HashFinding) -> None:
        self._finding = finding
        self._controller.knowledge.hash = finding.hash or FIVE_TUPLE
        if self.refusal:
            self._controller.refuse(self.refusal)
            _logger.warning("%s", self.refusal)
        elif finding.hash is None:
            remark = f"what the switches hash is not known ({finding.reason}); paths are planned as if by the 5-tuple"
            self._controller.remarks.append(f"{remark}; state it as c4.hash of the switches")
        else:
            level = logging.DEBUG if self._stated else logging.INFO
            _logger.log(level, "paths are chosen by %s: %s", _KNOBS[finding.hash], finding.reason)

    def _across(self) -> Iterator[Pair]:
        """Pairs of other NICs that may be far apart: each NIC with those around half of the list further on."""
        names = list(self._nics)
        for number, name in enumerate(names[:_CANDIDATES]):
            for step in (len(names) // 2, len(names) // 3, 1):
                other = names[(number + step) % len(names)]
                if self._nics[other].host != self._nics[name].host:
                    yield name, other

    async def _switches(self, pairs: Iterable[Pair]) -> dict[Pair, int]:
        """How many switches there are between these NICs, where that shows."""
        wanted = sorted(pairs)
        ends = [(self._nics[a], self._nics[b]) for a, b in wanted]
        counted = await self._survey.count_switches(ends, self._source_port)
        return {pair: counted[pair] for pair in wanted if pair in counted}

    async def _inquire(self, switches: Mapping[Pair, int]) -> HashFinding:
        """By packets that look like RDMA's; where switches can be read, also by such as queue pairs send."""
        inquiry = HashInquiry(switches, self._source_port)
        await self._ask(inquiry)
        if inquiry.finding.hash in {FIVE_TUPLE, DEST_QP} and self._read:
            return confirmed(inquiry.finding, await self._count(inquiry, self._read))
        return inquiry.finding

    async def _count(self, inquiry: HashInquiry, read: Read) -> list[tuple[int, int]]:
        """By pair, how many packets a queue pair sent, as its first switch counted, and how many went the known way."""
        counts: list[tuple[int, int]] = []
        try:
            for pair, hop in inquiry.ways.items():
                first = QpQuestion(pair, inquiry.source_port, 0, QP)
                near = (await asked(self._survey, self._controller, [first], self._nics)).get(first, "")
                before = await asyncio.to_thread(read)
                burst = [Burst(inquiry.source_port, _ANY_TTL, _PACKETS)]
                await self._survey.burst((self._nics[pair[0]], self._nics[pair[1]]), burst, QP)
                await asyncio.sleep(_COUNTED_S)
                carried = carried_packets(before, await asyncio.to_thread(read))
                counts += [(_PACKETS, carried.get(hop, 0))] if carried.get(near, 0) >= _PACKETS else []
        except UnhealthyError as error:
            _logger.warning("paths are not confirmed by packets of queue pairs: %s", error)
        return counts

    async def _ask(self, inquiry: HashInquiry) -> None:
        for questions in inquiry.rounds():
            left = questions
            for attempt in range(_ATTEMPTS):
                await asyncio.sleep(_AGAIN_S if attempt else 0)
                answers = await asked(self._survey, self._controller, left, self._nics)
                for question, address in answers.items():
                    inquiry.record(question, address)
                left = [question for question in left if not answers.get(question)]
                if not left:
                    break
            if len(left) == len(questions):
                break


async def asked(
    survey: PathSurvey, controller: PathController, questions: Sequence[QpQuestion], nics: Mapping[str, Nic]
) -> dict[QpQuestion, str]:
    """The answers, "" for none; the controller knows by them how many answers switches have left."""
    answers = await survey.ask_qps(questions, nics)
    for question, address in answers.items():
        silent = [] if address else [Question(question.pair, question.source_port, question.position)]
        controller.note_answers(question.pair[0], [address] if address else [], time.time(), silent)
    return answers


class PortFinder:
    """Finds source ports by which flows take their planned paths, where these depend on the queue pair."""

    def __init__(
        self, controller: PathController, survey: PathSurvey, nics: Mapping[str, Nic], source_ports: Sequence[int]
    ) -> None:
        self._controller, self._survey, self._nics = controller, survey, nics
        self._paths = QpPaths(source_ports)
        self._qps: dict[str, int] = {}
        self._ports: dict[str, int] = {}
        self._finding = asyncio.Lock()

    def add(self, qps: Mapping[str, int], ports: Mapping[str, int]) -> None:
        """Note the queue pairs that flows are for, by flow id, and the ports that they have already."""
        self._qps |= qps
        self._ports |= ports

    def release(self, flows: Iterable[str]) -> None:
        """Forget flows that have ended."""
        gone = list(flows)
        self._paths.release(gone)
        for flow in gone:
            self._qps.pop(flow, None)
            self._ports.pop(flow, None)

    def forget_paths(self) -> None:
        """The fabric has changed: ports may lead elsewhere."""
        self._paths.forget()

    def port(self, flow: str) -> int:
        """The port by which a flow takes its path; as it has, or 0, if none is known yet."""
        return self._paths.port(flow) or self._ports.get(flow, 0)

    async def find(self) -> None:
        """Find the ports of all live flows; one for which there is none is left where it is, and named in a remark."""
        async with self._finding:
            until_s = time.monotonic() + _PORTS_WITHIN_S
            switches: DisjointSets[str] | None = None
            while missing := self._missing():
                paths = self._known()
                switches = switches or self._controller.knowledge.switches()
                questions = self._paths.questions(missing, paths, switches.root)
                if not questions or time.monotonic() > until_s:
                    self._give_up(missing)
                    return
                answers = await asked(self._survey, self._controller, questions, self._nics)
                for question, address in answers.items():
                    if address:
                        self._paths.record(question, address)
                if not any(answers.values()):
                    await asyncio.sleep(_PORTS_AGAIN_S)

    def _missing(self) -> list[Wanted]:
        return self._paths.assign(self._wanted(), self._known())

    def _wanted(self) -> Iterator[Wanted]:
        for live in self._controller.live_flows:
            qp, hops = self._qps.get(live.flow.id, 0), self._controller.path(live.flow.id).hops
            if live.port and qp and hops:
                yield Wanted(live.flow.id, live.pair, qp, hops, self._ports.get(live.flow.id, 0))

    def _known(self) -> dict[Pair, set[tuple[str, ...]]]:
        knowledge = self._controller.knowledge
        return {live.pair: knowledge.paths(live.pair) for live in self._controller.live_flows}

    def _give_up(self, missing: Sequence[Wanted]) -> None:
        for one in missing:
            reason = f"no source port was found by which packets to queue pair {one.qp} take the planned path"
            self._controller.pin(one.flow, 0, reason)
