"""The path planning of one fabric: what is learnt goes in, each flow's source port and weight come out. Pure.

A request's walk: `PathController.join`, `guidance.Plans`, `placement.planner`, which places the flows by path choices,
link loads and local search, then back to `guidance.LiveFlows`, where `port` and `weight` are read. Callers give times.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from c4bench.c4p.guidance import LiveFlows, Plans
from c4bench.c4p.knowledge.atlas import Atlas, Pair, Probe, Question
from c4bench.c4p.knowledge.link_state import LinkHealth, MissingLinks, avoidable
from c4bench.c4p.knowledge.path_checks import AnswerLimits, CheckResults, PathChecks
from c4bench.c4p.knowledge.path_knowledge import PROBES, PathChanges, PathKnowledge, Trace
from c4bench.c4p.knowledge.path_search import PathSearch
from c4bench.c4p.policy import REMARKS_AT_MOST, PathPolicy
from c4bench.c4p.shares import needed_qps
from c4bench.c4p.tuning import WeightTuner
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Flow, MissingLink, Path
from c4bench.model.qp_address import connection_key
from c4bench.model.window import Window
from c4bench.units import FRAME_BYTES, PATH_MTU_BYTES

# Fraction of the most loaded link's own bytes. Less than this is acknowledgements, grants, and bytes that one side has
# counted before a reading and the other after it.
_OWN_NOISE = 0.1


class BackgroundTraffic:
    """Bytes that C4P's flows have sent over each hop since the last reading of the switches."""

    def __init__(self) -> None:
        self._own: dict[str, float] = defaultdict(float)

    def add_own(self, hops: Iterable[str], size_bytes: int) -> None:
        """Count payload of an own flow on the links of its path; headers are added."""
        for hop in hops:
            self._own[hop] += size_bytes * FRAME_BYTES / PATH_MTU_BYTES

    def rates_bps(self, received_bytes: Mapping[str, int], over_s: float) -> dict[str, float]:
        """The traffic of others on each link between two readings, bit/s; begins the next reading.

        `received_bytes` are what ports received in `over_s` seconds. Links with less than the noise are left out.
        """
        own, self._own = self._own, defaultdict(float)
        largest = max(own.values(), default=0.0)
        others = {hop: count - own.get(hop, 0.0) for hop, count in received_bytes.items()}
        return {hop: rest * 8 / over_s for hop, rest in others.items() if rest > _OWN_NOISE * largest and rest > 0}


class PathController:
    """The path planning of one fabric; times are seconds on the caller's clock.

    `port` and `weight` are what each of `live_flows` should use, `changes` counts how often they changed, `remarks` are
    problems for the operator. Before there is an atlas every flow is left to ECMP; it is planned once there is one.
    """

    def __init__(self, policy: PathPolicy = PathPolicy()) -> None:  # noqa: B008  (frozen)
        self.policy = policy
        self.knowledge = PathKnowledge()
        self.health = LinkHealth(policy.hold_down)
        self.remarks: list[str] = []
        self._missing_links = MissingLinks(self.knowledge, self.health)
        self.live_flows = LiveFlows(self.knowledge)
        self._plans = Plans(policy, self.live_flows, self.health, self.remarks)
        self._checks = PathChecks(policy, self.knowledge, self.health)
        self._background = BackgroundTraffic()
        self._tuner = WeightTuner(policy.tuning_s, policy.min_slowdown)

    @property
    def atlas(self) -> Atlas | None:
        """The known paths; None before any was learnt."""
        return self._plans.atlas

    @property
    def missing(self) -> tuple[MissingLink, ...]:
        """The links that were lost and are not back, by name."""
        return self._missing_links.missing

    @property
    def changes(self) -> int:
        """How many changes of live flows' ports and weights there were so far."""
        return self.live_flows.changes

    def set_policy(self, policy: PathPolicy) -> None:
        """Plan by another policy from now on; what is known of paths and links stays. There must be no live flows."""
        self.policy = policy
        self.health.hold_down = policy.hold_down
        self._checks.policy = policy
        self._plans = self._plans.by(policy)
        self._tuner = WeightTuner(policy.tuning_s, policy.min_slowdown)

    # Guidance

    def port(self, flow: str) -> int:
        """The source port a live flow should use; 0 leaves it to ECMP."""
        return self.live_flows[flow].port

    def weight(self, flow: str) -> float:
        """The share of its connection's load that a live flow should carry, 0 to 1."""
        return self.live_flows[flow].weight

    def knows(self, flow: str) -> bool:
        """Whether a flow is live."""
        return flow in self.live_flows

    def path(self, flow: str) -> Path:
        """The path of a live flow's port; source port 0 if it is not known."""
        return self.live_flows.path(self.live_flows[flow])

    def placed(self, job: str) -> dict[Flow, Path]:
        """The paths of a job's live flows that are not left to ECMP."""
        mine = (live for live in self.live_flows if live.flow.job == job and live.port)
        return {live.flow: self.live_flows.path(live) for live in mine}

    def unplanned(self) -> list[Flow]:
        """The live flows that are left to ECMP."""
        return [live.flow for live in self.live_flows if not live.port]

    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of NICs that have live flows, in order."""
        return tuple(self.live_flows.ports())

    def ports_in_use(self, pairs: Collection[Pair]) -> dict[Pair, list[int]]:
        """The source ports that live flows use, by those of these pairs that have any."""
        return {pair: ports for pair, ports in self.live_flows.ports().items() if pair in pairs}

    # Flows that begin and end

    def pairs_to_learn(self, pairs: Iterable[Pair], now_s: float) -> tuple[Pair, ...]:
        """Those of these pairs whose paths are unknown or too old to plan with, each once, in order."""
        unfinished = self.knowledge.unfinished
        return tuple(pair for pair in sorted(set(pairs)) if pair in unfinished or self._too_old(pair, now_s))

    def needed_qps(self, pair: Pair) -> int:
        """How many QPs a connection of this pair should have, by all its known paths: closed links may open again."""
        return needed_qps(self.knowledge.paths(pair), self._plans.capacities)

    def _too_old(self, pair: Pair, now_s: float) -> bool:
        return self.knowledge.age_s(pair, now_s) > self.policy.max_age_s

    def join(self, flows: Iterable[Flow], share: float = 1.0, ports: Mapping[str, int] = MappingProxyType({})) -> None:
        """Place new flows; live ones may be moved to make room. `share` is their job's.

        Flows that run already on one of `ports`, by flow id, whose path is known and open stay there, as after a
        restart of the master.
        """
        new = [flow for flow in flows if flow.id not in self.live_flows]
        counts = Counter(connection_key(flow) for flow in new)
        for flow in new:
            self.live_flows.add(flow, 1 / counts[connection_key(flow)], ports.get(flow.id, 0))
            self._plans.set_share(flow.job, share)
        if self.policy.scope == "random":
            self.live_flows.place_randomly(new)
            return
        running = [flow for flow in new if self.live_flows[flow.id].port]
        self._plans.adopt(running)
        self._plans.add([flow for flow in new if flow not in running])

    def leave(self, flows: Iterable[str]) -> None:
        """Remove flows that have ended; others may be moved to where they were."""
        self._plans.remove(self.live_flows.remove(flows))

    def forget(self, job: str) -> None:
        """Remove all flows of a job that has ended."""
        mine = [live for live in self.live_flows if live.flow.job == job]
        self._tuner.forget({live.address.comm for live in mine if live.address})
        self.leave([live.flow.id for live in mine])
        self._plans.forget(job)

    def pin(self, flow: str, port: int, reason: str) -> None:
        """Leave a flow that cannot be moved on `port`, and plan the others around it."""
        live = self.live_flows[flow]
        if not live.pinned:
            self.live_flows.pin(live, port)
            if len(self.remarks) < REMARKS_AT_MOST:
                self.remarks.append(f"flow {flow} stays where it is: {reason}")
            self._plans.rebuild()

    # Paths and links

    def refuse(self, reason: str) -> None:
        """Plan nothing, since no path can be chosen: every flow is left to the fabric, now and later."""
        self.remarks.append(reason)
        self.knowledge.clear()
        self._plans.renew(None)

    def recall(self, saved: PathKnowledge, now_s: float) -> None:
        """Begin with saved paths; see `pairs_to_learn` for those that are too old."""
        self.knowledge.recall(saved)
        self._checks.note_restart(now_s)
        self._checks.note_switches(now_s)
        self._plans.renew(self.knowledge.atlas())

    def set_capacities(self, bps: Mapping[str, float]) -> None:
        """Plan with these capacities of links, bit/s by hop; a link that is not in them is as fast as the fastest."""
        self._plans.set_capacities(bps)

    def set_planes(self, planes: Mapping[str, int]) -> None:
        """Keep paths within a plane from the next plan on: `planes` are those of the ports of bonds, by hop."""
        self._plans.planes = planes

    def begin_learning(self, pairs: Collection[Pair], now_s: float, *, changed: bool) -> None:
        """The paths of these pairs are being learnt; what is known is replaced if it is too old or has `changed`."""
        again = [pair for pair in pairs if changed or self._too_old(pair, now_s)]
        self.knowledge.begin(pairs, again, self.health.missing)

    def learn(
        self, traces: Mapping[Probe, Trace], now_s: float, how: str = PROBES, search: PathSearch | None = None
    ) -> bool:
        """Learn paths, which `search` has found unless they are all that the pairs have; and plan again.

        Return whether a missing link answers again, so that paths found before may have changed.
        """
        sample = search.sample(partial(self._checks.can_answer, now_s)) if search else None
        back = self._update_links(self.knowledge.learn(traces, now_s, how, sample), now_s)
        self._checks.note_switches(now_s)
        self._plans.renew(self.knowledge.atlas())
        return back

    def end_learning(self, now_s: float, given_up: Collection[Pair] = ()) -> None:
        """All paths of the pairs that were being learnt are known, but for those `given_up`."""
        if (changes := self.knowledge.end(given_up)).gone:
            self._update_links(changes, now_s)
            self._plans.renew(self.knowledge.atlas())
        self._checks.note_learnt(now_s)

    def _update_links(self, changes: PathChanges, now_s: float) -> bool:
        """Return whether a missing link answers again."""
        self._checks.note_refused(changes.refused, now_s)
        return self._missing_links.update(changes, now_s)

    def can_answer(self, nic: str, hop: str, now_s: float) -> bool:
        """Whether the hop's switch has an answer left for this NIC, as far as is known."""
        return self._checks.can_answer(now_s, nic, hop)

    def set_answer_limits(self, limits: AnswerLimits) -> None:
        """Count with these limits of switches' answers from now on."""
        self._checks.set_limits(limits)

    def note_answers(self, nic: str, hops: Iterable[str], now_s: float, silent: Iterable[Question] = ()) -> None:
        """Other probes of this NIC have met answers and silence; its switches can answer less in the next seconds."""
        self._checks.note_answers(nic, hops, now_s, silent)

    def checks(self, now_s: float) -> tuple[Question, ...]:
        """The checks that are due: of pairs of live flows, or of all known pairs while there are no flows."""
        if not self.policy.dynamic:
            return ()
        known = {pair: self.knowledge.entries(pair) for pair in self.knowledge.pairs}
        return self._checks.checks(self.live_flows.ports() or known, now_s)

    def evaluate_checks(self, answers: Mapping[Question, str], now_s: float) -> CheckResults:
        """Evaluate the addresses that answered, "" for none.

        If paths have changed, those of live flows have to be learnt again; otherwise the suspects have to be traced.
        """
        results = self._checks.evaluate(answers, now_s)
        self.health.mark_answered(results.crossed, now_s)
        self._missing_links.confirm(results.confirmed)
        return results

    def evaluate_traces(self, traces: Mapping[Probe, Trace], now_s: float) -> bool:
        """Compare traces with what is known; return whether paths have to be learnt again.

        That is the case if a port takes another path, or a link does not answer any more or answers again.
        """
        changes = self.knowledge.learn(traces, now_s)
        lost = changes.silent - self.health.closed
        back = self._update_links(changes, now_s)
        if lost:
            self._plans.close(lost)
        return back or bool(changes.changed or lost)

    def tick(self, now_s: float) -> None:
        """Use links again whose hold-down is over."""
        if self.policy.dynamic and self.health.reopen_due(now_s):
            self._plans.rebuild()

    def avoid(self, diagnosis: Diagnosis, now_s: float) -> None:
        """Avoid, for a time, the path or link that C4D names.

        A slow path stays in use if a NIC at its end may be to blame too: no other path would help, and all flows would
        lose this one. So does a link that nobody can go around, such as a NIC's only one: its flows would be left to
        ECMP, which takes it as well. A missing link is closed already, and opens when it answers probes again.
        """
        nic_suspected = any(component.kind == "nic" for component in diagnosis.alternatives)
        if diagnosis.syndrome is Syndrome.COMMUNICATION_SLOW and nic_suspected:
            return
        hops = avoidable(self._hops_of(diagnosis.component) - self.health.missing, self.knowledge)
        if hops and self.policy.dynamic:
            self.health.avoid(hops, now_s)
            self._plans.close(hops)

    def _hops_of(self, component: Component) -> frozenset[str]:
        if component.kind == "link":
            return frozenset({component.name})
        if component.kind != "path":
            return frozenset()
        ends = tuple(component.name.split(">"))
        mine = [self.live_flows.path(live).hops[1:-1] for live in self.live_flows if live.pair == ends]
        return frozenset(hop for hops in mine for hop in hops)

    # Measured load

    def observe(self, background_bps: Mapping[str, float]) -> None:
        """Plan around the traffic of others, bit/s by hop; live flows are moved if that gains enough."""
        self._plans.observe(background_bps)

    def ingest_counters(self, received_bytes: Mapping[str, int], over_s: float) -> None:
        """Ingest the bytes that switch ports received in the `over_s` seconds since the last reading; see `observe`."""
        self.observe(self._background.rates_bps(received_bytes, over_s))

    def ingest(self, window: Window) -> None:
        """Ingest a host's telemetry: weights follow the QPs' throughput, and a slow QP makes the next trace urgent."""
        followed = self.live_flows.followed(window.host, self._tuner.connections(window))
        if not followed:
            self._tuner.skip(window.host)
            return
        samples, live_flows = self._tuner.ingest(window), self.live_flows
        if not samples.slow.isdisjoint(followed):
            self._checks.request(samples.slow_ports)
        for connection, mine in followed.items():
            for qp, size_bytes in samples.bytes_by_qp(connection).items() if not mine else ():
                if (flow := live_flows.of_qp(connection[3:], qp)) is not None:
                    self._background.add_own(live_flows.path(flow).hops, size_bytes)
            if len(of_qps := samples.of(connection)) != len(mine):
                continue
            for live, sample in zip(mine, of_qps, strict=True):
                self._background.add_own(live_flows.path(live).hops, sample.size_bytes)
            if len(mine) > 1 and self.policy.dynamic:
                weights = self._tuner.correct(connection, [live.weight for live in mine], of_qps, window.end_s)
                for live, weight in zip(mine, weights or (), strict=False):
                    live_flows.set_weight(live, weight)

    def restart_tuning(self) -> None:
        """Discard measured throughput, because flows are being sent new guidance."""
        self._tuner.clear()
