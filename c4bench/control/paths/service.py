"""C4P at work: answers flows with source ports, watches their paths, and notifies ranks when one has to move."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from c4bench.c4p.controller import PathController
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.leaf_groups import Pair
from c4bench.c4p.knowledge.link_names import NamedLinks
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.c4p.policy import PathPolicy
from c4bench.control.authorisation import check_room
from c4bench.control.counted_traffic import CountedTraffic
from c4bench.control.jobs.job import Job
from c4bench.control.pages.health import UnplannedFlows
from c4bench.control.paths.learning import PathLearner, PlannedFabric
from c4bench.control.paths.survey import PathSurvey
from c4bench.control.periodic import Periodic
from c4bench.control.plan_log import TUNING, PlanLog
from c4bench.control.plan_requests import PlanRequests
from c4bench.control.published_paths import PublishedPaths
from c4bench.errors import UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.fabric import USUAL_QPS, Flow, LinkLoad, Nic
from c4bench.model.recording import PlannerRecord
from c4bench.model.window import Window
from c4bench.wire.messages import ChooseQps, Empty, FollowGuidance, Guidance, Release, Route
from c4bench.wire.peer import Peer

_logger = logging.getLogger(__name__)

# Weights closer than this are treated as equal, because every change costs a message.
_SAME_WEIGHT = 0.005


class PathService:
    """The paths of all jobs' flows; `jobs` are the master's, `agent` returns the connection to a host's agent.

    `keep` is called with all known paths whenever pairs have been learnt. `publish` is called with new links: of paths
    that were learnt or given to flows, and missing ones; and with the rates of links. `named` are the links by name.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        agent: Callable[[str], Peer],
        policy: PathPolicy | None = None,
        keep: Callable[[PathKnowledge], None] = lambda _: None,
        publish: Callable[[PlannerRecord], None] = lambda _: None,
    ) -> None:
        self.controller = PathController(policy or PathPolicy())
        self.survey = PathSurvey(agent)
        self._keep = keep
        self._published = PublishedPaths(publish)
        # The jobs, and how often flows and paths had changed, when flows were placed last.
        self._placed: tuple[list[Job], int, int] | None = None
        self.counted = CountedTraffic()
        self.named = NamedLinks()
        self._jobs = jobs
        self._learner: PathLearner | None = None
        self._warned: set[str] = set()
        self.requested = PlanRequests(jobs)
        self._notified = 0
        self._changes = PlanLog()
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Watch the paths of live flows until cancelled; and the traffic of others, if the fabric says how."""
        fabric = self._learner.fabric if self._learner else None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_paths())
            if fabric and fabric.read and fabric.background_s:
                tasks.create_task(self.counted.watch(fabric.read, fabric.background_s, self._ingest_counters))

    async def _watch_paths(self) -> None:
        periodic = Periodic("watching paths")
        while True:
            await asyncio.sleep(self.controller.policy.urgent_check_s)
            await periodic.round(self._watch_once)

    async def _watch_once(self) -> None:
        if self._learner:
            await self._follow_paths(self._learner)
        self.controller.tick(time.time())
        await self._apply_changes("links lost or restored")
        self._changes.report(self.controller.remarks)

    async def _follow_paths(self, learner: PathLearner) -> None:
        """Check paths, learn those that have changed, and go on with a search that waits for switches."""
        self.named = await learner.name_links()
        if await learner.check():
            await self._learn(self.controller.pairs() or self.controller.knowledge.pairs, changed=True)
        elif await learner.proceed():
            self._announce(self.controller.knowledge.pairs)

    async def _ingest_counters(self, carried: Mapping[str, int], over_s: float) -> None:
        self.controller.ingest_counters(carried, over_s)
        await self._apply_changes("background traffic changed")

    def plan(self, fabric: PlannedFabric) -> None:
        """Plan the flows of this fabric from now on; a pair's paths are learnt when a flow first needs one."""
        self._learner = PathLearner(self.controller, self.survey, fabric)
        _logger.info("planning paths between %d NICs, by %d source ports", len(fabric.nics), len(fabric.source_ports))

    def plan_by(self, policy: PathPolicy) -> None:
        """Plan by another policy from now on. Raises UsageError while flows are live."""
        if self.controller.pairs():
            raise UsageError("connections are planned by the present policy; close them first")
        self.controller.set_policy(policy)
        _logger.info("planning goes on with %s", policy)

    async def learn(self, fabric: PlannedFabric) -> Atlas:
        """Learn all pairs of NICs on different hosts, replace the paths known before, and plan with the new ones."""
        self.plan(fabric)
        assert self._learner
        self.controller.begin_learning(pairs := self._learner.all_pairs(), time.time(), changed=True)
        await self._learn(pairs, wait=True)
        await self._apply_changes("paths were learnt")
        assert self.controller.atlas is not None
        return self.controller.atlas

    def link_loads(self) -> dict[str, LinkLoad]:
        """The links that live flows cross or traffic was counted on, by hop, with what is planned and was counted."""
        return self.counted.beside(self._learner.link_loads(), self._learner.rates) if self._learner else {}

    async def learn_between(self, hosts: Sequence[str]) -> PathKnowledge:
        """Learn all pairs of NICs of these hosts now; return what is known of them.

        Raises UnhealthyError if nothing is planned here, UsageError for a host that has no NIC in the fabric.
        """
        if self._learner is None:
            raise UnhealthyError(self.requested.advice)
        nics = {host: [name for name, nic in self._learner.nics.items() if nic.host == host] for host in hosts}
        if unknown := [host for host in hosts if not nics[host]]:
            raise UsageError(f"{unknown[0]} has no NIC in the master's inventory")
        names = {name for mine in nics.values() for name in mine}
        await self._learn([pair for pair in self._learner.all_pairs() if set(pair) <= names], wait=True)
        await self._apply_changes("paths were learnt")
        return self.controller.knowledge.between(names)

    async def _learn(self, pairs: Sequence[Pair], *, changed: bool = False, wait: bool = False) -> None:
        if self._learner and (learnt := await self._learner.learn(pairs, changed=changed, wait=wait)):
            self._announce(learnt)

    def _announce(self, pairs: Sequence[Pair]) -> None:
        """Keep and publish what is known of these pairs now."""
        self._note("paths were learnt")
        self._keep(self.controller.knowledge)
        entries = ((pair, self.controller.knowledge.entries(pair)) for pair in pairs)
        self._published.paths({(*pair, port): entry.hops for pair, ports in entries for port, entry in ports.items()})
        self._published.missing(self.controller.missing)
        if self._learner:
            self._published.rates(self._learner.rates)

    # Requests of ranks; `Authorisation` has checked that they speak for their sender's flows

    def live_flow(self, name: str) -> Flow | None:
        """A live flow by its id."""
        return self.controller.live_flows[name].flow if self.controller.knows(name) else None

    def nic(self, name: str) -> Nic | None:
        """A NIC of the inventory that is planned by."""
        return self._learner.nics.get(name) if self._learner else None

    async def choose_qps(self, request: ChooseQps) -> int:
        """How many QPs each connection of these pairs should have: as many as the pair that needs most."""
        if self._learner:
            await self._learner.read_rates()
        await self._learn_unknown(request.pairs)
        return max(map(self.controller.needed_qps, request.pairs), default=USUAL_QPS)

    async def route(self, request: Route) -> tuple[int, ...]:
        """Place these flows in addition to those already placed; return their source ports."""
        await self._join(request.job, request.flows, {})
        knows, port = self.controller.knows, self.controller.port
        return tuple(port(flow.id) if knows(flow.id) else 0 for flow in request.flows)

    async def _join(self, job: str, flows: Sequence[Flow], ports: Mapping[str, int]) -> None:
        """Have these flows of a job planned; those that run already on known `ports`, by flow id, stay there."""
        check_room(self.controller.live_flows, flows)
        await self._learn_unknown([(flow.source, flow.destination) for flow in flows])
        running = self._jobs.get(job)
        self.controller.join(flows, running.spec.share if running else 1.0, ports)
        self._warn_unplanned(job)
        await self._apply_changes(f"new flows of {job}")

    async def _learn_unknown(self, pairs: Iterable[Pair]) -> None:
        if unknown := self.controller.pairs_to_learn(pairs, time.time()):
            await self._learn(unknown)

    def _warn_unplanned(self, job: str) -> None:
        """Log, once for each job, that flows which asked for a path have none."""
        unplanned = self.unplanned().get(job)
        if unplanned and job not in self._warned:
            self._warned.add(job)
            values, fields = (job, unplanned.flows, unplanned.reason), {"attempt": job}
            _logger.warning("%s: %d flows asked for a path and run on ECMP: %s", *values, extra=fields)

    def unplanned(self) -> dict[str, UnplannedFlows]:
        """The live flows that asked for a path and are left to ECMP, by job."""
        by_job = self.requested.by_job(self.controller.unplanned(), planning=self._learner is not None)
        return {job: UnplannedFlows(len(flows), self._why_unplanned(flows[0])) for job, flows in by_job.items()}

    def _why_unplanned(self, flow: Flow) -> str:
        pair = flow.source, flow.destination
        if self._learner is None:
            return self.requested.advice
        if missing := self._learner.missing_nics(pair):
            return f"the master's inventory has no NIC {missing[0]}"
        if not self.controller.knowledge.entries(pair):
            return f"no path of {pair[0]} > {pair[1]} is known; do the switches answer probes (c4bench paths)?"
        return f"no path of {pair[0]} > {pair[1]} is open"

    async def release(self, request: Release) -> Empty:
        """Remove flows that have ended."""
        self.controller.leave(request.flows)
        await self._apply_changes(f"flows of {request.job} ended", ended=True)
        return Empty()

    async def follow(self, request: FollowGuidance) -> Guidance:
        """Wait for guidance on a communicator's flows that differs from what they do now."""
        ports = {flow.id: port for flow, port in zip(request.flows, request.ports, strict=True)}
        new = [flow for flow in request.flows if not self.controller.knows(flow.id)]
        if new:
            await self._join(request.job, new, ports)
        for flow, port in zip(request.flows, request.ports, strict=True):
            if flow.id in request.refused and self.controller.knows(flow.id):
                self.controller.pin(flow.id, port, one_line(request.refused[flow.id]))
        await self._apply_changes(f"flows of {request.job} that cannot move")
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
        self._warned.discard(job)
        await self._apply_changes(f"{job} ended", ended=True)

    async def ingest(self, window: Window) -> None:
        """Ingest a host's telemetry, by which weights may change, and no paths."""
        self.controller.ingest(window)
        await self._notify(TUNING)

    async def apply_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Avoid, for a time, the links that C4D names."""
        self.controller.avoid(diagnosis, time.time())
        await self._apply_changes(f"diagnosis of {diagnosis.component}")

    def _note(self, why: str) -> None:
        """Note the reason of all changes since the last call."""
        self._changes.note(self.controller.changes, why)

    async def _apply_changes(self, why: str, *, ended: bool = False) -> None:
        """Publish the flows' paths, and wake the communicators that wait for guidance; `why` is for the log.

        Where flows have `ended`, they look whether theirs have.
        """
        state = [*self._jobs.values()], self.controller.live_flows.moves, self.controller.knowledge.changes
        for job in state[0] if state != self._placed else ():
            placed = self.controller.placed(job.spec.id)
            job.place(placed)
            self._published.placed(placed)
        self._placed = state
        await self._notify(why, ended=ended)

    async def _notify(self, why: str, *, ended: bool = False) -> None:
        self._note(why)
        if ended or self.controller.changes != self._notified:
            self._notified = self.controller.changes
            async with self._changed:
                self._changed.notify_all()
