"""C4P at work: answers flows with source ports, watches their paths, and notifies ranks when one has to move."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from c4bench.c4p.controller import PathController
from c4bench.c4p.evaluation.shortfalls import gaps
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.path_knowledge import COUNTERS, Pair, PathKnowledge
from c4bench.c4p.policy import PathPolicy
from c4bench.control.jobs import Job
from c4bench.control.path_survey import PathSurvey, Read, count_paths
from c4bench.control.switches import carried_bytes
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.fabric import Flow, Host, MissingLink, Nic
from c4bench.model.recording import LinksMissing, PathsLearnt
from c4bench.model.telemetry import Window
from c4bench.wire.messages import Empty, FollowGuidance, Guidance, Release, Route
from c4bench.wire.peer import Peer

_logger = logging.getLogger(__name__)

# Weights closer than this are treated as equal, because every change costs a message.
_SAME_WEIGHT = 0.005
# Repeated for as long as a connection is tuned, so logged at DEBUG.
TUNING = "weights follow completion times"


class PathService:
    """The paths of all jobs' flows; `jobs` are the master's, `agent` returns the connection to a host's agent.

    `keep` is called with all known paths whenever pairs have been learnt. `publish` is called with new links: of paths
    that were learnt or given to flows, and missing ones.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        agent: Callable[[str], Peer],
        policy: PathPolicy | None = None,
        keep: Callable[[PathKnowledge], None] = lambda _: None,
        publish: Callable[[PathsLearnt | LinksMissing], None] = lambda _: None,
    ) -> None:
        self.controller = PathController(policy or PathPolicy())
        self._keep = keep
        self._publish = publish
        self._paths: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._missing: tuple[MissingLink, ...] = ()
        self._jobs = jobs
        self.survey = PathSurvey(agent)
        self._read: Read | None = None
        self._counted: set[Pair] = set()
        self._incomplete: set[Pair] = set()
        self._nics: dict[str, Nic] = {}
        self._ports: Sequence[int] = ()
        self._notified = 0
        self._changes = PlanLog()
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Watch the paths of live flows until cancelled."""
        while True:
            await asyncio.sleep(self.controller.policy.urgent_retrace_s)
            await self._retrace()
            self.controller.tick(time.time())
            await self._apply_changes("links lost or restored")
            self._changes.report(self.controller.remarks)

    def plan(self, hosts: Sequence[Host], source_ports: Sequence[int]) -> None:
        """Plan the flows between these hosts from now on; a pair's paths are learnt when a flow first needs one."""
        self._nics = {nic.name: nic for host in hosts for nic in host.nics}
        self._ports = tuple(source_ports)
        _logger.info("planning paths between %d NICs, by %d source ports", len(self._nics), len(self._ports))

    def count_by(self, read: Read) -> None:
        """Learn paths by the switches' counters where probes are not answered; `read` may block."""
        self._read = read

    def plan_by(self, policy: PathPolicy) -> None:
        """Start over with another policy. Raises UsageError while flows are live."""
        if self.controller.pairs():
            raise UsageError("connections are planned by the present policy; close them first")
        self.controller = PathController(policy)
        self._counted.clear()
        self._incomplete.clear()
        self._notified, self._changes = 0, PlanLog()
        _logger.info("planning restarted with %s", policy)

    async def watch(self, read: Read, every_s: float) -> None:
        """Plan around other traffic, as the switches count it, until cancelled; `read` may block."""
        before, began_s = await asyncio.to_thread(read), time.monotonic()
        while True:
            await asyncio.sleep(every_s)
            now, now_s = await asyncio.to_thread(read), time.monotonic()
            self.controller.ingest_counters(carried_bytes(before, now), now_s - began_s)
            before, began_s = now, now_s
            await self._apply_changes("background traffic changed")

    async def learn(self, hosts: Sequence[Host], source_ports: Sequence[int]) -> Atlas:
        """Learn all pairs of NICs on different hosts now, and plan with these paths from now on."""
        self.plan(hosts, source_ports)
        nics = self._nics.values()
        await self._learn([(a.name, b.name) for a in nics for b in nics if a.host != b.host])
        await self._apply_changes("paths were learnt")
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
        self._note_gaps()
        self._keep(self.controller.knowledge)
        entries = ((pair, self.controller.knowledge.entries(pair)) for pair in known)
        self._publish_paths({(*pair, port): entry.hops for pair, ports in entries for port, entry in ports.items()})
        self._publish_missing()

    def _publish_paths(self, paths: Mapping[tuple[str, str, int], tuple[str, ...]]) -> None:
        new = {key: hops for key, hops in paths.items() if self._paths.get(key) != hops}
        if new:
            self._paths |= new
            self._publish(PathsLearnt(time.time(), tuple((*key, hops) for key, hops in sorted(new.items()))))

    def _publish_missing(self) -> None:
        if self.controller.missing != self._missing:
            names = ", ".join(link.name for link in self.controller.missing)
            level = logging.WARNING if names else logging.INFO
            _logger.log(level, "links missing: %s", names or "none", extra={"links": names})
            self._missing = self.controller.missing
            self._publish(LinksMissing(time.time(), self._missing))

    async def _count(self, pairs: Sequence[Pair]) -> None:
        """Learn the pairs that answer no probes by counters, and add a remark."""
        silent = sorted(set(pairs).intersection(self.controller.knowledge.unanswered) - self._counted)
        if not silent or self._read is None:
            return
        self._counted.update(silent)
        traces = await count_paths(self.survey, self._read, [self._of(pair) for pair in silent], self._ports)
        self.controller.learn(traces, time.time(), COUNTERS)
        learnt = len({(source, destination) for source, destination, _ in traces})
        self.controller.remarks.append(
            f"{len(silent)} pairs of NICs answer no probes (is ICMP time exceeded filtered?); the paths of {learnt} of "
            "them are known by the switches' counters, which show a change only when they are read again"
        )

    def _note_gaps(self) -> None:
        """Add one remark for each pair whose source ports do not reach all open paths."""
        closed = self.controller.health.closed
        for gap in gaps(self.controller.atlas) if self.controller.atlas else ():
            pair = gap.source, gap.destination
            if pair not in self._incomplete and any(closed.isdisjoint(hops) for hops in gap.missing):
                self._incomplete.add(pair)
                self.controller.remarks.append(str(gap))

    def _of(self, pair: Pair) -> tuple[Nic, Nic]:
        return self._nics[pair[0]], self._nics[pair[1]]

    async def _retrace(self) -> None:
        wanted = self.controller.ports_to_trace(time.time())
        ports = {self._of(pair): chosen for pair, chosen in wanted.items() if set(pair) <= self._nics.keys()}
        if not ports:
            return
        lengths = {pair: self.controller.knowledge.length(pair) for pair in wanted}
        traces = await self.survey.trace(ports, lengths)
        if self.controller.check_traces(traces, time.time()):
            await self._learn(self.controller.pairs())

    # Requests of ranks

    async def route(self, request: Route) -> tuple[int, ...]:
        """Place these flows in addition to those already placed; return their source ports."""
        if unknown := self.controller.pairs_to_learn(request.flows, time.time()):
            await self._learn(unknown)
        self._join(request.flows)
        await self._apply_changes(f"new flows of {request.job}")
        return tuple(self.controller.port(flow.id) for flow in request.flows)

    def _join(self, flows: Sequence[Flow]) -> None:
        for name in sorted({flow.job for flow in flows}):
            job = self._jobs.get(name)
            self.controller.join([flow for flow in flows if flow.job == name], job.spec.share if job else 1.0)

    async def release(self, request: Release) -> Empty:
        """Remove flows that have ended."""
        self.controller.leave(request.flows)
        self._note(f"flows of {request.job} ended")
        await self._wake()
        return Empty()

    async def follow(self, request: FollowGuidance) -> Guidance:
        """Wait for guidance on a communicator's flows that differs from what they do now."""
        self._join([flow for flow in request.flows if not self.controller.knows(flow.id)])
        for flow, port in zip(request.flows, request.ports, strict=True):
            if flow.id in request.refused:
                self.controller.pin(flow.id, port, request.refused[flow.id])
        await self._apply_changes(f"new flows of {request.job}")
        async with self._changed:
            await self._changed.wait_for(lambda: self._gone(request) or self._guidance(request) != Guidance())
        if self._gone(request):
            raise UnhealthyError(f"job {request.job} has released its flows")
        self.controller.restart_tuning()
        return self._guidance(request)

    def _gone(self, request: FollowGuidance) -> bool:
        return not all(self.controller.knows(flow.id) for flow in request.flows)

    def _guidance(self, request: FollowGuidance) -> Guidance:
        ports: dict[str, int] = {}
        weights: dict[str, float] = {}
        for flow, port, weight in zip(request.flows, request.ports, request.weights, strict=True):
            if self.controller.port(flow.id) != port:
                ports[flow.id] = self.controller.port(flow.id)
            if abs(self.controller.weight(flow.id) - weight) > _SAME_WEIGHT:
                weights[flow.id] = self.controller.weight(flow.id)
        return Guidance(ports, weights)

    # Events in the master

    async def forget(self, job: str) -> None:
        """Remove all flows of a job that has ended."""
        self.controller.forget(job)
        self._note(f"{job} ended")
        await self._wake()

    async def ingest(self, window: Window) -> None:
        """Ingest a host's telemetry."""
        self.controller.ingest(window.conns, window.end_s)
        await self._apply_changes(TUNING)

    async def apply_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Avoid, for a time, the links that C4D names."""
        self.controller.avoid(diagnosis, time.time())
        await self._apply_changes(f"diagnosis of {diagnosis.component}")

    def _note(self, why: str) -> None:
        """Note the reason of all changes since the last call."""
        self._changes.note(self.controller.changes, why)

    async def _apply_changes(self, why: str) -> None:
        """Publish the flows' paths, and wake the communicators that wait for guidance; `why` is for the log."""
        self._note(why)
        for job in self._jobs.values():
            placed = self.controller.placed(job.spec.id)
            job.placed |= placed
            self._publish_paths({(f.source, f.destination, path.source_port): path.hops for f, path in placed.items()})
        if self.controller.changes != self._notified:
            self._notified = self.controller.changes
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class PlanLog:
    """Counts changes of paths and weights by reason; `report` logs one line for each reason."""

    def __init__(self) -> None:
        self._noted = 0
        self._changes: Counter[str] = Counter()
        self._remarks = 0

    def note(self, changes: int, why: str) -> None:
        """Count changes for a reason; `changes` is the total so far."""
        if changes != self._noted:
            self._changes[why] += changes - self._noted
            self._noted = changes

    def report(self, remarks: Sequence[str]) -> None:
        """Log the changes and remarks since the last report; `remarks` are all so far."""
        for why, count in self._changes.items():
            level = logging.DEBUG if why == TUNING else logging.INFO
            _logger.log(level, "%d changes of paths or weights: %s", count, why, extra={"changes": count, "why": why})
        self._changes.clear()
        for remark in remarks[self._remarks :]:
            _logger.warning("%s", remark)
        self._remarks = len(remarks)
