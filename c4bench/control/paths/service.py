"""C4P at work: answers flows with source ports, watches their paths, and notifies ranks when one has to move."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from c4bench.budget import AGENT, OverBudgetError
from c4bench.c4p.controller import PathController
from c4bench.c4p.guidance import LiveFlows
from c4bench.c4p.knowledge.atlas import Atlas, Pair
from c4bench.c4p.knowledge.link_names import NamedLinks
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.c4p.policy import PathPolicy
from c4bench.control.jobs.job import Job
from c4bench.control.paths.hashing import PortFinder
from c4bench.control.paths.learning import PathLearner, PlannedFabric
from c4bench.control.paths.survey import PathSurvey
from c4bench.control.paths.switches import CountedTraffic
from c4bench.errors import PathsRefusedError, Periodic, UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.fabric import ASK_QPS, USUAL_QPS, Flow, LinkLoad, MissingLink, Nic, Path, host_of_nic
from c4bench.model.graph import FabricGraph
from c4bench.model.recording import LinkRates, LinksMissing, PathsLearnt, PlannerRecord
from c4bench.model.window import Window
from c4bench.wire.messages import ChooseQps, Empty, FollowGuidance, Guidance, Release, Route
from c4bench.wire.peer import Peer

_logger = logging.getLogger(__name__)

# Weights closer than this are treated as equal, because every change costs a message.
_SAME_WEIGHT = 0.005
# Repeated for as long as a connection is tuned, so logged at DEBUG.
TUNING = "weights follow completion times"
_QPS = 1 << 24
NO_INVENTORY = "this master plans no paths; start it with --hosts INVENTORY"
_PLANNED = "planned"  # by this word all programs' parameters ask for it


class UnplannedFlows(msgspec.Struct, frozen=True):
    """How many live flows of a job asked for a path and are left to ECMP, and why."""

    flows: int
    reason: str


class PublishedPaths:
    """Calls `publish` with what is new: paths by pair of NICs and source port, missing links, and rates of links."""

    def __init__(self, publish: Callable[[PlannerRecord], None]) -> None:
        self._publish = publish
        self._paths: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._missing: tuple[MissingLink, ...] = ()
        self._rates: Mapping[str, float] = {}

    def paths(self, paths: Mapping[tuple[str, str, int], tuple[str, ...]]) -> None:
        """Publish the paths that are new, or lead elsewhere now."""
        new = {key: hops for key, hops in paths.items() if self._paths.get(key) != hops}
        if new:
            self._paths |= new
            self._publish(PathsLearnt(time.time(), tuple((*key, hops) for key, hops in sorted(new.items()))))

    def placed(self, flows: Mapping[Flow, Path]) -> None:
        """Publish the paths of these flows that are new, or lead elsewhere now."""
        self.paths({(flow.source, flow.destination, path.source_port): path.hops for flow, path in flows.items()})

    def missing(self, links: tuple[MissingLink, ...]) -> None:
        """Publish and log the missing links, if they are others than before."""
        if links != self._missing:
            names = ", ".join(link.name for link in links)
            level = logging.WARNING if names else logging.INFO
            _logger.log(level, "links missing: %s", names or "none", extra={"links": names})
            self._missing = links
            self._publish(LinksMissing(time.time(), links))

    def rates(self, bps: Mapping[str, float]) -> None:
        """Publish the rates of links, bit/s by hop, if they are others than before."""
        if bps != self._rates:
            self._rates = bps
            self._publish(LinkRates(time.time(), dict(bps)))


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
        self._qp_ports: PortFinder | None = None
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
        self._qp_ports = PortFinder(self.controller, self.survey, fabric.nics, fabric.source_ports)
        _logger.info("planning paths between %d NICs, by %d source ports", len(fabric.nics), len(fabric.source_ports))

    @property
    def graph(self) -> FabricGraph | None:
        """The stated graph of the fabric that is planned; None for none."""
        return self._learner.fabric.graph if self._learner else None

    def plan_by(self, policy: PathPolicy) -> None:
        """Plan by another policy from now on. Raises UsageError while flows are live."""
        if self.controller.pairs():
            raise UsageError("connections are planned by the present policy; close them first")
        self.controller.set_policy(policy)
        _logger.info("planning goes on with %s", policy)

    async def learn(self, fabric: PlannedFabric) -> Atlas:
        """Learn all pairs of NICs on different hosts, replace the paths known before, and plan with the new ones.

        Raises PathsRefusedError where no path can be chosen.
        """
        self.plan(fabric)
        assert self._learner
        await self._find_hash(pairs := self._learner.all_pairs())
        self.controller.begin_learning(pairs, time.time(), changed=True)
        await self._learn(pairs, wait=True)
        await self._apply_changes("paths were learnt")
        assert self.controller.atlas is not None
        return self.controller.atlas

    async def _find_hash(self, pairs: Sequence[Pair]) -> None:
        """Know what switches hash. Raises PathsRefusedError where no path can be chosen."""
        if self._learner:
            await self._learner.hash.find([pair for pair in pairs if not self._learner.missing_nics(pair)])
            if refusal := self._learner.hash.refusal:
                raise PathsRefusedError(refusal)

    @property
    def _by_qp(self) -> PortFinder | None:
        """What finds the ports of queue pairs, where these decide on paths too."""
        return self._qp_ports if self._learner and self._learner.hash.by_qp else None

    def _port(self, flow: str) -> int:
        """The source port that a live flow should use."""
        port = self.controller.port(flow)
        return self._by_qp.port(flow) if self._by_qp and port else port

    def link_loads(self) -> dict[str, LinkLoad]:
        """The links that live flows cross or traffic was counted on, by hop, with what is planned and was counted."""
        return self.counted.beside(self._learner.link_loads(), self._learner.rates) if self._learner else {}

    async def learn_between(self, hosts: Sequence[str]) -> PathKnowledge:
        """Learn all pairs of NICs of these hosts now; return what is known of them.

        Raises UnhealthyError if nothing is or can be planned here, UsageError for a host that has no NIC in the fabric.
        """
        if self._learner is None:
            raise UnhealthyError(self.requested.advice)
        nics = {host: [name for name, nic in self._learner.nics.items() if nic.host == host] for host in hosts}
        if unknown := [host for host in hosts if not nics[host]]:
            raise UsageError(f"{unknown[0]} has no NIC in the master's inventory")
        names = {name for mine in nics.values() for name in mine}
        await self._find_hash(pairs := [pair for pair in self._learner.all_pairs() if set(pair) <= names])
        await self._learn(pairs, wait=True)
        await self._apply_changes("paths were learnt")
        return self.controller.knowledge.between(names)

    async def _learn(self, pairs: Sequence[Pair], *, changed: bool = False, wait: bool = False) -> None:
        if changed and self._qp_ports:
            self._qp_ports.forget_paths()
        if self._learner and (learnt := await self._learner.learn(pairs, changed=changed, wait=wait)):
            self._announce(learnt)

    def _announce(self, pairs: Sequence[Pair]) -> None:
        """Keep and publish what is known of these pairs now."""
        self._note("paths were learnt")
        self._keep(self.controller.knowledge)
        # Where queue pairs decide too, a port alone says nothing of a path.
        entries = ((pair, self.controller.knowledge.entries(pair)) for pair in pairs if not self._by_qp)
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

    def nic_at(self, address: str) -> Nic | None:
        """The same by its address."""
        nics = self._learner.nics.values() if self._learner else ()
        return next((nic for nic in nics if nic.address == address), None)

    async def choose_qps(self, request: ChooseQps) -> int:
        """How many QPs each connection of these pairs should have: as many as the pair that needs most."""
        if self._learner:
            await self._learner.read_rates()
        await self._learn_unknown(request.pairs)
        return max(map(self.controller.needed_qps, request.pairs), default=USUAL_QPS)

    async def route(self, request: Route) -> tuple[int, ...]:
        """Place these flows in addition to those already placed; return their source ports.

        Without the queue pairs that they need, ASK_QPS for each.
        """
        if self._learner:
            with suppress(PathsRefusedError):
                await self._find_hash([(flow.source, flow.destination) for flow in request.flows])
        qps = _qps(request)
        if self._by_qp and not qps:
            return (ASK_QPS,) * len(request.flows)
        await self._join(request.job, request.flows, {}, qps)
        knows = self.controller.knows
        return tuple(self._port(flow.id) if knows(flow.id) else 0 for flow in request.flows)

    async def _join(self, job: str, flows: Sequence[Flow], ports: Mapping[str, int], qps: Mapping[str, int]) -> None:
        """Have these flows of a job planned; those that run already on known `ports`, by flow id, stay there."""
        _check_room(self.controller.live_flows, flows)
        if self._by_qp:
            # These ports are those of queue pairs.
            self._by_qp.add(qps, ports)
            ports = {}
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
        if refusal := self._learner.hash.refusal:
            return refusal
        if missing := self._learner.missing_nics(pair):
            return f"the master's inventory has no NIC {missing[0]}"
        if not self.controller.knowledge.entries(pair):
            return f"no path of {pair[0]} > {pair[1]} is known; do the switches answer probes (c4bench paths)?"
        return f"no path of {pair[0]} > {pair[1]} is open"

    async def release(self, request: Release) -> Empty:
        """Remove flows that have ended."""
        self.controller.leave(request.flows)
        if self._qp_ports:
            self._qp_ports.release(request.flows)
        await self._apply_changes(f"flows of {request.job} ended", ended=True)
        return Empty()

    async def follow(self, request: FollowGuidance) -> Guidance:
        """Wait for guidance on a communicator's flows that differs from what they do now."""
        ports = {flow.id: port for flow, port in zip(request.flows, request.ports, strict=True)}
        new = [flow for flow in request.flows if not self.controller.knows(flow.id)]
        if new:
            await self._join(request.job, new, ports, _qps(request))
        for flow, port in zip(request.flows, request.ports, strict=True):
            if flow.id in request.refused and self.controller.knows(flow.id):
                self.controller.pin(flow.id, 0 if self._by_qp else port, one_line(request.refused[flow.id]))
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
            if self._port(flow.id) != port:
                ports[flow.id] = self._port(flow.id)
            if abs(self.controller.weight(flow.id) - weight) > _SAME_WEIGHT:
                weights[flow.id] = self.controller.weight(flow.id)
        return Guidance(ports, weights)

    # Events in the master

    async def forget(self, job: str) -> None:
        """Remove all flows of a job that has ended."""
        if self._qp_ports:
            self._qp_ports.release([live.flow.id for live in self.controller.live_flows if live.flow.job == job])
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
        if self._by_qp:
            await self._by_qp.find()
        state = [*self._jobs.values()], self.controller.live_flows.moves, self.controller.knowledge.changes
        for job in state[0] if state != self._placed else ():
            placed = self._on_ports(self.controller.placed(job.spec.id))
            job.place(placed)
            self._published.placed(placed)
        self._placed = state
        await self._notify(why, ended=ended)

    def _on_ports(self, placed: Mapping[Flow, Path]) -> dict[Flow, Path]:
        """The same paths, with the ports that flows use."""
        return {flow: replace(path, source_port=self._port(flow.id)) for flow, path in placed.items()}

    async def _notify(self, why: str, *, ended: bool = False) -> None:
        self._note(why)
        if ended or self.controller.changes != self._notified:
            self._notified = self.controller.changes
            async with self._changed:
                self._changed.notify_all()


class PlanRequests:
    """The requests of `jobs`. At first a program's default counts as a request."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._default_asks = True
        self.advice = NO_INVENTORY

    def only_explicit(self, advice: str) -> None:
        """A job asks for paths only by its own parameters, not by its program's default; `advice` is for those."""
        self._default_asks, self.advice = False, advice

    def by_job(self, flows: Iterable[Flow], *, planning: bool) -> dict[str, list[Flow]]:
        """These flows by job, of the jobs that have asked for paths; of all jobs where the master is `planning`."""
        found: dict[str, list[Flow]] = {}
        for flow in flows:
            found.setdefault(flow.job, []).append(flow)
        return {job: of_job for job, of_job in found.items() if planning or self._asks(job)}

    def _asks(self, job: str) -> bool:
        running = self._jobs.get(job)
        values = running.spec.parameters.values() if running else ()
        words = (word for value in values for word in (value if isinstance(value, list | tuple) else (value,)))
        return self._default_asks or any(isinstance(word, str) and word.startswith(_PLANNED) for word in words)


def _qps(request: Route | FollowGuidance) -> dict[str, int]:
    """The queue pairs that a request names, by flow. Raises UsageError if they are not those of its flows."""
    if request.qps is msgspec.UNSET:
        return {}
    if len(request.qps) != len(request.flows) or not all(0 <= qp < _QPS for qp in request.qps):
        raise UsageError(f"{len(request.qps)} queue pairs for {len(request.flows)} flows; name one of 24 bits for each")
    return {flow.id: qp for flow, qp in zip(request.flows, request.qps, strict=True)}


def _check_room(live: LiveFlows, flows: Iterable[Flow]) -> None:
    """Raises OverBudgetError if a host would have more live flows than one agent may."""
    new = Counter(host_of_nic(flow.source) for flow in flows if flow.id not in live)
    for host, count in new.items():
        if live.of_host(host) + count > AGENT.names:
            raise OverBudgetError(f"{host}: more than {AGENT.names:,} flows, which is the most that is planned")
