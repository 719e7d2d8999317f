"""Probes that make diagnoses more exact; C4D gets the results."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from c4bench.c4d.act.doubts import Doubts
from c4bench.c4d.act.sweep import plan_sweep, unexplained
from c4bench.c4p.knowledge.atlas import Question
from c4bench.control.detection.detection import Detection
from c4bench.control.jobs.probe_jobs import ProbeJobs
from c4bench.control.paths.service import PathService
from c4bench.control.state.registry import JobRegistry, name_of
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis, Syndrome
from c4bench.model.fabric import Nic
from c4bench.model.recording import (
    DeliveriesCounted,
    ExpiringProbe,
    HopsProbed,
    ProbeSweep,
    ProbingBegan,
    ProbingEnded,
    TrainsTimed,
)
from c4bench.wire.messages import JobSpec

_logger = logging.getLogger(__name__)

_SLOW = (Syndrome.COMMUNICATION_SLOW, Syndrome.NON_COMMUNICATION_SLOW)
# Further diagnoses within this time are of the same faults.
_APART_S = 10.0
# A second sweep follows if a fault may have begun during the first.
_SWEEPS = 2
# More rounds than any doubt needs; a round in which a probe meets silence takes a tenth of a second.
_ROUNDS = 8
# Numbered packets of each kind on a flow, in each round.
_PACKETS = 100
# Packet trains on a flow, in each round.
_TRAINS = 10
# About as long (bytes) is a packet that is not part of a train.
_PACKET_BYTES = 128
# Asking that takes less (s) is taken to last so long.
_SHORTEST_S = 0.01


class ProbeSweeper:
    """Probes all NICs of a job once something in it is slow.

    It sweeps at most one at a time for each job whose policy allows it.
    """

    def __init__(self, registry: JobRegistry, detection: Detection, probes: ProbeJobs) -> None:
        self._registry, self._detection, self._probes = registry, detection, probes
        self._began_s: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, attempt: str, diagnoses: Sequence[Diagnosis]) -> None:
        """Begin a sweep if one of the diagnoses says that something is slow."""
        running = self._registry.by_attempt(attempt)
        slow = any(diagnosis.syndrome in _SLOW for diagnosis in diagnoses)
        if running is None or not running.policy.sweep or not slow:
            return
        name, now_s = name_of(attempt), time.time()
        if now_s - self._began_s.get(name, -math.inf) >= _APART_S:
            self._began_s[name] = now_s
            self._tasks[name] = asyncio.create_task(self._sweep(running.spec))

    async def _sweep(self, spec: JobSpec) -> None:
        nics = {nic.name: nic for nic in spec.nics}
        steps = plan_sweep(spec.nics)
        probes = tuple(probe for step in steps for probe in step)
        if not probes:
            return
        fields = {"attempt": spec.id, "probes": len(probes)}
        try:
            for _ in range(_SWEEPS):
                shares = await self._probes.shares(steps, nics)
                sweep = ProbeSweep(time.time(), spec.id, probes, tuple(shares))
                values = (spec.id, len(probes), min(shares))
                _logger.info("%s: all NICs probed by %d transfers, slowest %.2f of its bound", *values, extra=fields)
                self._detection.ingest(spec.id, sweep)
                if not unexplained(sweep):
                    return
        except UnhealthyError as error:
            _logger.warning("%s: NICs not probed: %s", spec.id, error, extra=fields)

    async def release(self, name: str) -> None:
        """Stop the sweep of a job that has ended."""
        self._began_s.pop(name, None)
        if task := self._tasks.pop(name, None):
            task.cancel()
            await asyncio.wait((task,))


class _Asked:
    """What asking has cost so far: packets and trains, and bits by the NIC that sent them."""

    def __init__(self) -> None:
        self.packets = 0
        self._bits: Counter[str] = Counter()
        self._began_s = time.time()

    def add(self, flows: Iterable[tuple[str, str, int]], packets: int, packet_bytes: int) -> None:
        """So many packets were sent on each of these flows."""
        for source, *_ in flows:
            self.packets += packets
            self._bits[source] += 8 * packets * packet_bytes

    def load_fraction(self, nics: Mapping[str, Nic]) -> float:
        """The largest share of a NIC's rate that this has taken."""
        lasted_s = max(time.time() - self._began_s, _SHORTEST_S)
        return max((bits / lasted_s / nics[nic].rate_bps for nic, bits in self._bits.items()), default=0.0)


class DoubtProber:
    """Probes what C4D cannot tell apart, until one suspect is left or no probe can tell.

    It probes for at most one doubt at a time of each job.
    """

    def __init__(self, registry: JobRegistry, detection: Detection, paths: PathService) -> None:
        self._registry, self._detection, self._paths = registry, detection, paths
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, attempt: str) -> None:
        """Begin to probe if there are open doubts about an attempt."""
        running, name, doubts = self._registry.by_attempt(attempt), name_of(attempt), self._detection.doubts(attempt)
        if running and doubts and doubts.any_open and name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._probe(name, running.spec, doubts))

    async def _probe(self, name: str, spec: JobSpec, doubts: Doubts) -> None:
        nics, asked = {nic.name: nic for nic in spec.nics}, _Asked()
        self._detection.ingest(spec.id, ProbingBegan(time.time(), spec.id))
        try:
            for _ in range(_ROUNDS):
                if not await self._round(spec.id, doubts, nics, asked):
                    break
        finally:
            self._tasks.pop(name, None)
        load = asked.load_fraction(nics)
        _logger.info("%s: asking took %d packets and trains, %.4f of a NIC's rate", spec.id, asked.packets, load)
        self._detection.ingest(spec.id, ProbingEnded(time.time(), spec.id, asked.packets, load))

    async def _round(self, attempt: str, doubts: Doubts, nics: Mapping[str, Nic], asked: _Asked) -> bool:
        """Send the next probes; return whether there were any."""
        if answers := await self._ask(doubts.next_probes(self._can_answer), nics):
            asked.add((probe[:3] for probe in answers), 1, _PACKET_BYTES)
            self._detection.ingest(attempt, HopsProbed(time.time(), attempt, tuple(answers), tuple(answers.values())))
            _logger.info("%s: %d probes that expire on the way, %d answered", attempt, len(answers), _given(answers))
            return True
        if flows := doubts.next_flows():
            deliveries = await self._paths.survey.deliver(flows, nics, _PACKETS)
            asked.add(flows, 2 * _PACKETS, _PACKET_BYTES)
            self._detection.ingest(attempt, DeliveriesCounted(time.time(), attempt, deliveries))
            _logger.info("%s: numbered packets sent on %d flows, counted on %d", attempt, len(flows), len(deliveries))
            return bool(deliveries)
        if flows := doubts.next_trains():
            timed = await self._paths.survey.time_trains(flows, nics, _TRAINS)
            asked.add(flows, _TRAINS, timed[0].train_bytes if timed else 0)
            self._detection.ingest(attempt, TrainsTimed(time.time(), attempt, timed))
            _logger.info("%s: packet trains sent on %d flows, timed on %d", attempt, len(flows), len(timed))
            return bool(timed)
        return False

    def _can_answer(self, nic: str, hop: str) -> bool:
        return self._paths.controller.can_answer(nic, hop, time.time())

    async def _ask(
        self, probes: Mapping[ExpiringProbe, str], nics: Mapping[str, Nic]
    ) -> dict[ExpiringProbe, str | None]:
        """The answers to probes (see `HopsProbed`), each given with the address that should answer.

        Probes of hosts whose agents are not there are left out.
        """
        able = {probe for probe, hop in probes.items() if self._can_answer(probe.source, hop)}
        checks = {Question((one.source, one.destination), one.source_port, one.hops - 1): one for one in probes}
        found = {checks[check]: address for check, address in (await self._paths.survey.check(checks, nics)).items()}
        for probe, address in found.items():
            if address:
                self._paths.controller.note_answers(probe.source, (address,), time.time())
        return {probe: address if address or probe in able else None for probe, address in found.items()}

    async def release(self, name: str) -> None:
        """Stop probing for a job that has ended."""
        if task := self._tasks.pop(name, None):
            task.cancel()
            await asyncio.wait((task,))


def _given(answers: Mapping[ExpiringProbe, str | None]) -> int:
    return sum(bool(address) for address in answers.values())
