"""Learns the paths of pairs of NICs: by probes, and by the switches' counters where probes are not answered."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

import msgspec

from c4bench.c4p.controller import PathController
from c4bench.c4p.evaluation.shortfalls import gaps
from c4bench.c4p.knowledge.path_knowledge import COUNTERS, Pair
from c4bench.control.path_survey import PathSurvey, Read, count_paths
from c4bench.model.fabric import Host, Nic

_logger = logging.getLogger(__name__)

# UDP source ports that a flow label can ask for, except 0xC000, which label 0 (ECMP) stands for. 24 ports cover 4 equal
# paths with probability 0.996, 8 with 0.70.
SOURCE_PORTS = range(0xC001, 0xC001 + 24)


class PlannedFabric(msgspec.Struct, frozen=True):
    """What C4P plans: the flows between these hosts' NICs, by these UDP source ports.

    `read` reads the switches' counters and may block; None where there are no switches to read. It is used every
    `background_s` to see the traffic of others, if that is not 0.
    """

    hosts: Sequence[Host]
    source_ports: Sequence[int] = SOURCE_PORTS
    read: Read | None = None
    background_s: float = 0.0

    @property
    def nics(self) -> dict[str, Nic]:
        """Every NIC by name."""
        return {nic.name: nic for host in self.hosts for nic in host.nics}


class PathLearner:
    """Learns paths of one fabric for a controller, and adds remarks on pairs that it cannot learn well."""

    def __init__(self, controller: PathController, survey: PathSurvey, fabric: PlannedFabric) -> None:
        self.fabric = fabric
        self._controller, self._survey = controller, survey
        self.nics: Mapping[str, Nic] = fabric.nics
        self._rated = False
        self._counted: set[Pair] = set()
        self._incomplete: set[Pair] = set()

    def missing_nics(self, pair: Pair) -> list[str]:
        """The NICs of a pair that are not in the fabric."""
        return sorted(set(pair) - self.nics.keys())

    def all_pairs(self) -> list[Pair]:
        """All pairs of NICs on different hosts."""
        nics = self.nics.values()
        return [(a.name, b.name) for a in nics for b in nics if a.host != b.host]

    async def learn(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Learn all source ports of these pairs; return the pairs that are in the fabric."""
        mine = [pair for pair in pairs if not self.missing_nics(pair)]
        if not mine:
            return []
        await self._read_rates()
        lengths = {pair: self._controller.knowledge.length(pair) for pair in mine}
        traces = await self._survey.learn([self._of(pair) for pair in mine], self.fabric.source_ports, lengths)
        self._controller.learn(traces, time.time())
        _logger.info("learnt the paths of %d pairs of NICs from %d traces", len(mine), len(traces))
        await self._count(mine)
        self._note_gaps()
        return mine

    async def _read_rates(self) -> None:
        """Tell the controller the rates of NICs and, once, of the switches' ports that the inventory states."""
        if self._rated or self.fabric.read is None:
            return
        self._rated = True
        ports = await asyncio.to_thread(self.fabric.read)
        rates = {address: port.rate_bps for address, port in ports.items() if port.rate_bps}
        if rates:
            self._controller.set_capacities(rates | {nic.address: nic.rate_bps for nic in self.nics.values()})

    async def retrace(self) -> bool:
        """Trace the ports that are due; return whether the pairs of live flows have to be learnt again."""
        due = self._controller.ports_to_trace(time.time())
        ports = {self._of(pair): chosen for pair, chosen in due.items() if not self.missing_nics(pair)}
        if not ports:
            return False
        lengths = {pair: self._controller.knowledge.length(pair) for pair in due}
        traces = await self._survey.trace(ports, lengths)
        return self._controller.check_traces(traces, time.time())

    async def _count(self, pairs: Sequence[Pair]) -> None:
        """Learn the pairs that answer no probes by counters, and add a remark."""
        silent = sorted(set(pairs).intersection(self._controller.knowledge.unanswered) - self._counted)
        read = self.fabric.read
        if not silent or read is None:
            return
        self._counted.update(silent)
        traces = await count_paths(self._survey, read, [self._of(pair) for pair in silent], self.fabric.source_ports)
        self._controller.learn(traces, time.time(), COUNTERS)
        learnt = len({(source, destination) for source, destination, _ in traces})
        self._controller.remarks.append(
            f"{len(silent)} pairs of NICs answer no probes (is ICMP time exceeded filtered?); the paths of {learnt} of "
            "them are known by the switches' counters, which show a change only when they are read again"
        )

    def _note_gaps(self) -> None:
        """Add one remark for each pair whose source ports do not reach all open paths."""
        closed = self._controller.health.closed
        for gap in gaps(self._controller.atlas) if self._controller.atlas else ():
            pair = gap.source, gap.destination
            if pair not in self._incomplete and any(closed.isdisjoint(hops) for hops in gap.missing):
                self._incomplete.add(pair)
                self._controller.remarks.append(str(gap))

    def _of(self, pair: Pair) -> tuple[Nic, Nic]:
        return self.nics[pair[0]], self.nics[pair[1]]
