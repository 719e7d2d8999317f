"""C4P at work: it answers flows with paths, looks after them while they run, and tells ranks when one has to move."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from c4bench.c4p.atlas import Atlas
from c4bench.c4p.controller import PathController
from c4bench.c4p.coverage import gaps
from c4bench.c4p.path_knowledge import COUNTERS, Pair, PathKnowledge
from c4bench.c4p.policy import PathPolicy
from c4bench.control.counted_paths import Read, counted
from c4bench.control.jobs import Job
from c4bench.control.path_survey import PathSurvey
from c4bench.control.plan_log import TUNING, PlanLog
from c4bench.control.switches import PortCount, carried_bytes
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.fabric import Flow, Host, MissingLink, Nic
from c4bench.model.recording import LinksMissing, PathsLearnt
from c4bench.model.telemetry import Window
from c4bench.wire.messages import Empty, FollowGuidance, Guidance, Release, Route
from c4bench.wire.peer import Peer

_logger = logging.getLogger(__name__)

# Shares closer than this are the same: every change costs a message.
_SAME_SHARE = 0.005


class PathService:
    """The paths of all jobs' flows; `jobs` are the master's, `agent` gives the line to a host's agent.

    `keep` is given all that is known of the fabric whenever pairs have been learnt; `tell` hears of the links of paths
    that were learnt or given to flows, and of links that are missing, whenever something is new.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        agent: Callable[[str], Peer],
        policy: PathPolicy | None = None,
        keep: Callable[[PathKnowledge], None] = lambda _: None,
        tell: Callable[[PathsLearnt | LinksMissing], None] = lambda _: None,
    ) -> None:
        self.controller = PathController(policy or PathPolicy())
        self._keep = keep
        self._announce = tell
        self._ways: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._missing: tuple[MissingLink, ...] = ()
        self._jobs = jobs
        self.survey = PathSurvey(agent)
        self._read: Read | None = None
        self._counted: set[Pair] = set()
        self._lacking: set[Pair] = set()
        self._nics: dict[str, Nic] = {}
        self._ports: Sequence[int] = ()
        self._told = 0
        self._changes = PlanLog()
        self._news = asyncio.Condition()

    async def run(self) -> None:
        """Look after the paths of live flows until cancelled."""
        while True:
            await asyncio.sleep(self.controller.policy.hurry_s)
            await self._look()
            self.controller.tick(time.time())
            await self._tell("links lost or restored")
            self._changes.report(self.controller.remarks)

    def plan(self, hosts: Sequence[Host], source_ports: Sequence[int]) -> None:
        """Plan the flows between these hosts from here on; a pair's paths are learnt when a flow first asks for one."""
        self._nics = {nic.name: nic for host in hosts for nic in host.nics}
        self._ports = tuple(source_ports)
        _logger.info("planning paths between %d NICs, by %d source ports", len(self._nics), len(self._ports))

    def count_by(self, read: Read) -> None:
        """Where probes are not answered, learn paths by what the switches count; `read` may block."""
        self._read = read

    def plan_by(self, policy: PathPolicy) -> None:
        """Begin anew by another policy. Raises UsageError while flows are live."""
        if self.controller.pairs():
            raise UsageError("connections are planned by the present policy; close them first")
        self.controller = PathController(policy)
        self._counted.clear()
        self._lacking.clear()
        self._told, self._changes = 0, PlanLog()
        _logger.info("planning restarted with %s", policy)

    async def watch(self, read: Callable[[], Mapping[str, PortCount]], every_s: float) -> None:
        """Plan around the traffic of others, as the switches count it, until cancelled; `read` may block."""
        before, began_s = await asyncio.to_thread(read), time.monotonic()
        while True:
            await asyncio.sleep(every_s)
            now, now_s = await asyncio.to_thread(read), time.monotonic()
            self.controller.count(carried_bytes(before, now), now_s - began_s)
            before, began_s = now, now_s
            await self._tell("background traffic changed")

    async def learn(self, hosts: Sequence[Host], source_ports: Sequence[int]) -> Atlas:
        """Learn all pairs of NICs on different hosts now, and plan with what was found from here on."""
        self.plan(hosts, source_ports)
        nics = self._nics.values()
        await self._learn([(a.name, b.name) for a in nics for b in nics if a.host != b.host])
        await self._tell("paths were learnt")
        assert self.controller.atlas is not None
        return self.controller.atlas

    async def _learn(self, pairs: Sequence[Pair]) -> None:
        known = [pair for pair in pairs if set(pair) <= self._nics.keys()]
        if not known or not self._ports:
            return
        lengths = {pair: self.controller.knowledge.length(pair) for pair in known}
        traces = await self.survey.learn([self._of(pair) for pair in known], self._ports, lengths)
        self.controller.learn(traces, time.time())
        _logger.info("learnt the paths of %d pairs of NICs from %d traces", len(known), len(traces))
        self._note("paths were learnt")
        await self._count(known)
        self._say_gaps()
        self._keep(self.controller.knowledge)
        entries = ((pair, self.controller.knowledge.entries(pair)) for pair in known)
        self._note_ways({(*pair, port): entry.hops for pair, found in entries for port, entry in found.items()})
        self._note_missing()

    def _note_ways(self, ways: Mapping[tuple[str, str, int], tuple[str, ...]]) -> None:
        fresh = {way: hops for way, hops in ways.items() if self._ways.get(way) != hops}
        if fresh:
            self._ways |= fresh
            self._announce(PathsLearnt(time.time(), tuple((*way, hops) for way, hops in sorted(fresh.items()))))

    def _note_missing(self) -> None:
        if self.controller.missing != self._missing:
            names = ", ".join(link.name for link in self.controller.missing)
            level = logging.WARNING if names else logging.INFO
            _logger.log(level, "links missing: %s", names or "none", extra={"links": names})
            self._missing = self.controller.missing
            self._announce(LinksMissing(time.time(), self._missing))

    async def _count(self, pairs: Sequence[Pair]) -> None:
        """Learn by counters what has not answered, and say so."""
        silent = sorted(set(pairs).intersection(self.controller.knowledge.unanswered) - self._counted)
        if not silent or self._read is None:
            return
        self._counted.update(silent)
        traces = await counted(self.survey, self._read, [self._of(pair) for pair in silent], self._ports)
        self.controller.learn(traces, time.time(), COUNTERS)
        found = len({(source, destination) for source, destination, _ in traces})
        self.controller.remarks.append(
            f"{len(silent)} pairs of NICs answer no probes (is ICMP time exceeded filtered?); the paths of {found} of "
            "them are known by the switches' counters, which tell of a change only when they are read again"
        )

    def _say_gaps(self) -> None:
        """Say once of each pair that its ports do not reach all ways; what is closed is no way."""
        closed = self.controller.health.closed
        for gap in gaps(self.controller.atlas) if self.controller.atlas else ():
            pair = gap.source, gap.destination
            if pair not in self._lacking and any(closed.isdisjoint(way) for way in gap.missing):
                self._lacking.add(pair)
                self.controller.remarks.append(str(gap))

    def _of(self, pair: Pair) -> tuple[Nic, Nic]:
        return self._nics[pair[0]], self._nics[pair[1]]

    async def _look(self) -> None:
        wanted = self.controller.look(time.time())
        ports = {self._of(pair): chosen for pair, chosen in wanted.items() if set(pair) <= self._nics.keys()}
        if not ports:
            return
        lengths = {pair: self.controller.knowledge.length(pair) for pair in wanted}
        traces = await self.survey.trace(ports, lengths)
        if self.controller.looked(traces, time.time()):
            await self._learn(self.controller.pairs())

    # What ranks ask

    async def route(self, request: Route) -> tuple[int, ...]:
        """Place these flows beside those already placed."""
        if unsure := self.controller.unsure(request.flows, time.time()):
            await self._learn(unsure)
        self._join(request.flows)
        await self._tell(f"new flows of {request.job}")
        return tuple(self.controller.port(flow.id) for flow in request.flows)

    def _join(self, flows: Sequence[Flow]) -> None:
        for job in sorted({flow.job for flow in flows}):
            known = self._jobs.get(job)
            self.controller.join([flow for flow in flows if flow.job == job], known.spec.share if known else 1.0)

    async def release(self, request: Release) -> Empty:
        """These flows are gone."""
        self.controller.leave(request.flows)
        self._note(f"flows of {request.job} ended")
        await self._wake()
        return Empty()

    async def follow(self, request: FollowGuidance) -> Guidance:
        """What a communicator's flows should do differently from what they do, once there is anything."""
        self._join([flow for flow in request.flows if not self.controller.knows(flow.id)])
        for flow, port in zip(request.flows, request.ports, strict=True):
            if flow.id in request.refused:
                self.controller.pin(flow.id, port, request.refused[flow.id])
        await self._tell(f"new flows of {request.job}")
        async with self._news:
            await self._news.wait_for(lambda: self._gone(request) or self._guidance(request) != Guidance())
        if self._gone(request):
            raise UnhealthyError(f"job {request.job} has released its flows")
        self.controller.turned()
        return self._guidance(request)

    def _gone(self, request: FollowGuidance) -> bool:
        return not all(self.controller.knows(flow.id) for flow in request.flows)

    def _guidance(self, request: FollowGuidance) -> Guidance:
        told = zip(request.flows, request.ports, request.weights, strict=True)
        ports: dict[str, int] = {}
        weights: dict[str, float] = {}
        for flow, port, weight in told:
            if self.controller.port(flow.id) != port:
                ports[flow.id] = self.controller.port(flow.id)
            if abs(self.controller.weight(flow.id) - weight) > _SAME_SHARE:
                weights[flow.id] = self.controller.weight(flow.id)
        return Guidance(ports, weights)

    # What the master hears

    async def forget(self, job: str) -> None:
        """A job has ended, and all its flows with it."""
        self.controller.forget(job)
        self._note(f"{job} ended")
        await self._wake()

    async def hear(self, window: Window) -> None:
        """Telemetry of a host."""
        self.controller.feed(window.conns, window.end_s)
        await self._tell(TUNING)

    async def apply_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Stop using, for a time, the links that C4D names."""
        self.controller.blame(diagnosis, time.time())
        await self._tell(f"diagnosis of {diagnosis.component}")

    def _note(self, why: str) -> None:
        """Note the reason of all changes since the last call."""
        self._changes.note(self.controller.changes, why)

    async def _tell(self, why: str) -> None:
        """Wake the communicators that wait for news, where there may be some; `why` is for the log."""
        self._note(why)
        for job in self._jobs.values():
            placed = self.controller.placed(job.spec.id)
            job.placed |= placed
            self._note_ways({(f.source, f.destination, path.source_port): path.hops for f, path in placed.items()})
        if self.controller.changes != self._told:
            self._told = self.controller.changes
            await self._wake()

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()
