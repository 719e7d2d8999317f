"""Learns the paths of pairs of NICs: by probes, and by the switches' counters where probes are not answered."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

import msgspec

from c4bench.c4p.controller import PathController
from c4bench.c4p.evaluation import gaps
from c4bench.c4p.knowledge.atlas import Pair
from c4bench.c4p.knowledge.cabling import CableDifference, compare_paths, recognise
from c4bench.c4p.knowledge.link_names import NamedLinks, Port, link_rates, name_links
from c4bench.c4p.knowledge.nic_links import BondPlanes, NicLinks
from c4bench.c4p.knowledge.path_knowledge import COUNTERS
from c4bench.c4p.knowledge.path_search import PathSearch
from c4bench.control.paths.hashing import HashFinder
from c4bench.control.paths.survey import PathSurvey
from c4bench.control.paths.switches import PathCounter, PortCount, Read, count_paths
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import FIVE_TUPLE, Hash, Host, LinkLoad, Nic
from c4bench.model.graph import FabricGraph
from c4bench.verbs.mlx5 import leaving_port

_logger = logging.getLogger(__name__)

# UDP source ports that a flow label can ask for, except 0xC000, which label 0 (ECMP) stands for. 128 ports miss one of
# 16 equal paths of a pair with probability 0.004. A search uses as many as it needs.
SOURCE_PORTS = range(0xC001, 0xC001 + 128)
_POLL_S = 0.1
# A search that somebody waits for counts too from then on, while it waits for switches: reading counters is work.
_COUNTED_AFTER_S = 15.0
# A job that begins while paths are learnt again waits so long until as many are known as before: a few paths that are
# found first would carry all of its load.
_CATCH_UP_S = 5.0
# Counts in succession that fit no path: there is other traffic, or the counters are not current.
_MISFITS = 3


class PlannedFabric(msgspec.Struct, frozen=True):
    """What C4P plans: the flows between these hosts' NICs, by these UDP source ports.

    `read` reads the switches' counters and may block; None where there are no switches to read. It is used every
    `background_s` to see the traffic of others, if that is not 0. `graph` is the stated one, with which paths are
    compared; None for none. `hash` is what the switches choose paths by, as stated; None if that is to be found out.
    """

    hosts: Sequence[Host]
    source_ports: Sequence[int] = SOURCE_PORTS
    read: Read | None = None
    background_s: float = 0.0
    graph: FabricGraph | None = None
    hash: Hash | None = FIVE_TUPLE

    @property
    def nics(self) -> dict[str, Nic]:
        """Every NIC by name."""
        return {nic.name: nic for host in self.hosts for nic in host.nics}


class PathLearner:
    """Learns paths of one fabric for a controller, and adds remarks on pairs that it cannot learn well.

    `rates` are the known rates of links, bit/s by hop.
    """

    def __init__(self, controller: PathController, survey: PathSurvey, fabric: PlannedFabric) -> None:
        self.fabric = fabric
        self._controller, self._survey = controller, survey
        self.nics: Mapping[str, Nic] = fabric.nics
        self._links = NicLinks(self.nics.values())
        self._planes = BondPlanes(self.nics, self._links, _port_number)
        self._search = PathSearch(fabric.source_ports, self._links)
        self._counter = PathCounter(survey, fabric.read, self.nics) if fabric.read else None
        self.hash = HashFinder(controller, survey, self.nics, fabric.source_ports[0], fabric.hash, fabric.read)
        self._searching = asyncio.Lock()
        self._ports: Mapping[str, PortCount] | None = None
        self._reading = asyncio.Lock()
        self.rates: dict[str, float] = {}
        self._named = NamedLinks()
        self._named_changes = 0
        self._differences: set[CableDifference] = set()
        self._counted: set[Pair] = set()
        self._incomplete: set[Pair] = set()

    def missing_nics(self, pair: Pair) -> list[str]:
        """The NICs of a pair that are not in the fabric."""
        return sorted(set(pair) - self.nics.keys())

    def all_pairs(self) -> list[Pair]:
        """All pairs of NICs on different hosts."""
        nics = self.nics.values()
        return [(a.name, b.name) for a in nics for b in nics if a.host != b.host]

    async def learn(self, pairs: Sequence[Pair], *, changed: bool = False, wait: bool = False) -> list[Pair]:
        """Learn the paths of these pairs; return the pairs that are in the fabric.

        Return after one round, with which one can plan, unless told to `wait` for the end; `proceed` goes on. Of pairs
        that are being learnt again wait, for a time, until as many paths are known as before. If the fabric has
        `changed`, nothing that was found before counts. Where paths cannot be chosen, none is learnt.
        """
        mine = [pair for pair in pairs if not self.missing_nics(pair)]
        await self.hash.find(mine)
        if not mine or self.hash.refusal:
            return []
        await self.read_rates()
        new = mine if changed else [pair for pair in mine if pair not in self._search.open_pairs]
        lengths = {pair: self._controller.knowledge.length(pair) for pair in new}
        unknown = [self._of(pair) for pair in new if not lengths[pair]]
        counted = await self._survey.count_switches(unknown, self.fabric.source_ports[0])
        switches = {pair: lengths[pair] - 1 if lengths[pair] else counted.get(pair, 0) for pair in new}
        async with self._searching:
            self._begin(switches, changed=changed)
        await self._step()
        if wait:
            await self._wait(mine)
        elif not changed:
            await self._catch_up(mine)
        return mine

    def _begin(self, switches: Mapping[Pair, int], *, changed: bool) -> None:
        """Begin a search for the paths of these pairs, with so many switches on each, 0 where that is not known."""
        self._controller.begin_learning(switches, time.time(), changed=changed)
        missing = self._controller.health.missing if changed else None
        known = {pair: self._controller.knowledge.ports_by_path(pair) for pair in switches if changed}
        self._search.begin(switches, self._controller.ports_in_use(switches), known, missing)

    async def _wait(self, pairs: Sequence[Pair]) -> None:
        """Wait until the search for these pairs has ended; count paths too when it takes long."""
        counted_from_s, misfits = time.monotonic() + _COUNTED_AFTER_S, 0
        counted: set[tuple[Pair, int]] = set()
        while not set(pairs).isdisjoint(self._search.open_pairs):
            if await self.proceed():
                continue
            counter = self._counter if misfits < _MISFITS and time.monotonic() >= counted_from_s else None
            if counter and (wanted := self._search.port_to_count(counted)):
                misfits = 0 if await self._count_path(counter, *wanted) else misfits + 1
                counted.add(wanted)
            else:
                await asyncio.sleep(_POLL_S)

    async def _catch_up(self, pairs: Sequence[Pair]) -> None:
        """Wait until as many paths of each pair are known as before it is learnt again, for a few seconds at most."""
        until_s = time.monotonic() + _CATCH_UP_S
        while any(map(self._controller.knowledge.lacks_paths, pairs)) and time.monotonic() < until_s:
            if not await self.proceed():
                await asyncio.sleep(_POLL_S)

    async def _count_path(self, counter: PathCounter, pair: Pair, source_port: int) -> bool:
        """Find the path of a source port that is being traced by counters; return whether the counts fit one."""
        async with self._searching:
            try:
                return self._search.record_links(pair, source_port, await counter.links(pair, source_port))
            except UnhealthyError:
                return False

    async def proceed(self) -> bool:
        """Go on with a search that waits for switches, if it is time; return whether there was one."""
        if not self._search.ready(time.monotonic()):
            return False
        await self._step()
        return True

    async def _step(self) -> None:
        """Run one round of the search, and plan with what it found; at its end count what answers no probes."""
        async with self._searching:
            if not (asking := self._search.begin_round(time.monotonic())):
                return
            await self._survey.search_round(self._search, asking, self.nics, self._controller.note_answers)
            if self._counter:
                self._counter.forget_reading()
            if traces := self._search.end_round(time.monotonic()):
                self._controller.set_planes(self._planes.by_hop(traces))
                back = self._controller.learn(traces, time.time(), search=self._search)
                if self.fabric.graph is not None:
                    await self._rate_links()
                pairs = {(source, destination) for source, destination, _ in traces}
                _logger.info("learnt %d paths of %d pairs of NICs", len(traces), len(pairs))
                if back and self._search.rounds > 1:
                    self._begin(self._search.switches, changed=True)
            if not self._search.open_pairs:
                await self._count()
                self._controller.end_learning(time.time(), self._search.given_up)
                self._note_gaps()
                await self._note_differences()

    async def read_rates(self) -> None:
        """Read, once, what the switches' ports are; without them only the graph and the NICs have rates.

        The names of switches are then those of links to bonds too.
        """
        async with self._reading:
            if self._ports is not None or self.fabric.read is None:
                return
            self._ports = {}
            try:
                self._ports = await asyncio.to_thread(self.fabric.read)
            except UnhealthyError as error:
                _logger.warning("the switches' ports cannot be read; only the inventory's graph names them: %s", error)
            self._links.name_switches(self._names())
            self._controller.set_planes(self._planes.by_hop(self._controller.knowledge.traces()))
            await self._rate_links()

    async def _rate_links(self) -> None:
        """Tell the controller the rates of links, if there are any besides those of NICs."""
        ports, graph = self._ports or {}, self.fabric.graph
        rates = {address: port.rate_bps for address, port in ports.items() if port.rate_bps}
        if not rates and not (graph and graph.trunks):
            return
        stated = rates | self._links.capacities()
        if graph is not None:
            atlas = self._controller.knowledge.atlas()
            # This takes seconds for a thousand NICs, in which the master has other things to do.
            fabric = await asyncio.to_thread(recognise, atlas, graph, self._names())
            stated |= link_rates(fabric, graph, self.nics.values(), rates, self._where())
        if stated != self.rates:
            self.rates = stated
            self._controller.set_capacities(stated)

    def _names(self) -> dict[str, str]:
        """The switches that were asked, by hop address."""
        return {address: port.switch for address, port in (self._ports or {}).items()}

    def _where(self) -> dict[str, Port]:
        """The switch and the port at each address that a switch was asked for."""
        return {address: (port.switch, port.interface) for address, port in (self._ports or {}).items()}

    def link_loads(self) -> dict[str, LinkLoad]:
        """What live flows bring to each link, by hop, if all NICs send at once as fast as they can."""
        nics_bps = {name: nic.rate_bps for name, nic in self.nics.items()}
        return self._controller.live_flows.link_loads(self.rates, nics_bps)

    async def name_links(self) -> NamedLinks:
        """The links of all known paths by name; as of before while paths are being learnt."""
        changes = self._controller.knowledge.changes
        if changes != self._named_changes and not self._search.open_pairs:
            self._named_changes = changes
            atlas = self._controller.knowledge.atlas()
            found = await asyncio.to_thread(name_links, atlas, self.fabric.graph, self._where())
            self._named = found.beside(self._named, self._controller.health.missing)
        return self._named

    async def _note_differences(self) -> None:
        """Add a remark for each difference between the known paths and the stated graph."""
        if self.fabric.graph is None:
            return
        atlas = self._controller.knowledge.atlas()
        found = await asyncio.to_thread(compare_paths, atlas, self.fabric.graph, self._names())
        self._controller.remarks += [str(new) for new in found if new not in self._differences]
        self._differences.update(found)

    async def check(self) -> bool:
        """Check the paths that are due; return whether the pairs of live flows have to be learnt again."""
        due = self._controller.checks(time.time())
        answers = await self._survey.check([check for check in due if not self.missing_nics(check.pair)], self.nics)
        results = self._controller.evaluate_checks(answers, time.time())
        if results.changed or not results.suspects:
            return results.changed
        knowledge = self._controller.knowledge
        switches = {
            (*pair, port): len(knowledge.entries(pair)[port].hops) - 1
            for pair, ports in results.suspects.items()
            for port in ports
        }
        traced = await self._survey.trace(switches, self.nics)
        traces = {probe: (*hops, self._links.last_hop(probe[1], hops[-1])) for probe, hops in traced.items()}
        return self._controller.evaluate_traces(traces, time.time())

    async def _count(self) -> None:
        """Learn the pairs that answer no probes by counters, and add a remark."""
        silent = sorted(set(self._controller.knowledge.unanswered) - self._counted)
        if not silent or self._counter is None:
            return
        self._counted.update(silent)
        search = PathSearch(self.fabric.source_ports, self._links)
        search.begin(dict.fromkeys(silent, 0))
        try:
            traces = await count_paths(self._counter, search)
        except UnhealthyError as error:
            self._controller.remarks.append(
                f"{len(silent)} pairs of NICs answer no probes, nor can be counted: {error}"
            )
            return
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


def _port_number(source: Nic, destination: Nic, source_port: int) -> int:
    """Which port of its bond a NIC sends by, counted from 0."""
    return source.bond.index(leaving_port(source.bond, source.address, destination.address, source_port))
