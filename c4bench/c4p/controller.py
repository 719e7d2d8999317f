"""Keeps live flows level: what it hears goes in, where every flow should be now comes out. Pure; times are given."""

from collections import Counter
from collections.abc import Iterable, Mapping
from zlib import crc32

from c4bench.c4p.guidance.live_flows import LiveFlows
from c4bench.c4p.guidance.plans import Plans
from c4bench.c4p.knowledge.atlas import Atlas, Probe
from c4bench.c4p.knowledge.background_traffic import Background
from c4bench.c4p.knowledge.link_state import LinkHealth, MissingLinks
from c4bench.c4p.knowledge.path_knowledge import PROBES, Pair, PathKnowledge, Trace
from c4bench.c4p.knowledge.retrace_scheduler import RetraceScheduler
from c4bench.c4p.policy import PathPolicy
from c4bench.c4p.weights.tuning import WeightTuner
from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.fabric import Flow, MissingLink, Path
from c4bench.model.qp_address import connection_key
from c4bench.model.telemetry import ConnRecord


class PathController:
    """The state of one fabric's path planning.

    `port` and `weight` say what each live flow should do, `changes` counts what it has asked of them, `remarks` are
    what is wrong. Without an atlas every flow is left to ECMP, and planned for once there is one.
    """

    def __init__(self, policy: PathPolicy = PathPolicy()) -> None:  # noqa: B008  (frozen)
        self.policy = policy
        self.knowledge = PathKnowledge()
        self.health = LinkHealth(policy.patience)
        self.remarks: list[str] = []
        self._absence = MissingLinks(self.knowledge, self.health)
        self._roster = LiveFlows(self.knowledge)
        self._plans = Plans(policy, self._roster, self.health, self.remarks)
        self._lookout = RetraceScheduler(policy, self.knowledge, self.health)
        self._background = Background()
        self._tuning = WeightTuner(policy.settle_s, policy.calm)

    @property
    def atlas(self) -> Atlas | None:
        """The paths as known now; None before anything was learnt."""
        return self._plans.atlas

    @property
    def missing(self) -> tuple[MissingLink, ...]:
        """The links that are lost and have not come back, by name."""
        return self._absence.missing

    @property
    def changes(self) -> int:
        """How much has been asked of live flows so far."""
        return self._roster.changes

    # What is asked of it

    def port(self, flow: str) -> int:
        """The source port a live flow should use; 0 leaves it to ECMP."""
        return self._roster[flow].port

    def weight(self, flow: str) -> float:
        """The share of its connection's load that a live flow should carry."""
        return self._roster[flow].weight

    def knows(self, flow: str) -> bool:
        """Whether a flow is live."""
        return flow in self._roster

    def path(self, flow: str) -> Path:
        """Where a live flow is, as far as that is known."""
        return self._roster.path(self._roster[flow])

    def placed(self, job: str) -> dict[Flow, Path]:
        """Where a job's live flows are, those that a path is known for."""
        return {live.flow: self._roster.path(live) for live in self._roster if live.flow.job == job and live.port}

    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of NICs that have live flows, in order."""
        return tuple(self._roster.ports())

    def unsure(self, flows: Iterable[Flow], now_s: float) -> tuple[Pair, ...]:
        """The pairs of these flows that have to be learnt before they can be planned."""
        pairs = sorted({(flow.source, flow.destination) for flow in flows})
        return tuple(pair for pair in pairs if self.knowledge.age_s(pair, now_s) > self.policy.fresh_s)

    # Flows that come and go

    def join(self, flows: Iterable[Flow], share: float = 1.0) -> None:
        """Plan for further flows; live ones may have to make room."""
        new = [flow for flow in flows if flow.id not in self._roster]
        counts = Counter(connection_key(flow) for flow in new)
        for flow in new:
            self._roster.add(flow, 1 / counts[connection_key(flow)])
            self._plans.grant(flow.job, share)
        if self.policy.scope == "random":
            self._scatter(new)
        else:
            self._plans.add(new)

    def _scatter(self, flows: Iterable[Flow]) -> None:
        for flow in flows:
            if ports := sorted(self.knowledge.entries((flow.source, flow.destination))):
                self._roster[flow.id].port = ports[crc32(flow.id.encode()) % len(ports)]

    def leave(self, flows: Iterable[str]) -> None:
        """These flows have ended; others may take the room they leave."""
        self._plans.remove(self._roster.drop(flows))

    def forget(self, job: str) -> None:
        """A job has ended."""
        mine = [live for live in self._roster if live.flow.job == job]
        self._tuning.forget({live.address.comm for live in mine if live.address})
        self.leave([live.flow.id for live in mine])
        self._plans.forget(job)

    def pin(self, flow: str, port: int, reason: str) -> None:
        """A flow cannot be moved from `port`: it is planned around from now on."""
        live = self._roster[flow]
        if not live.pinned:
            live.pinned, live.port, live.planned = True, port, port
            self.remarks.append(f"flow {flow} stays where it is: {reason}")
            self._plans.rebuild()

    # What is heard of the fabric

    def recall(self, saved: PathKnowledge) -> None:
        """Begin with what was learnt earlier: pairs that it is too old for are learnt anew before they are planned."""
        self.knowledge.recall(saved)
        self._plans.renew(self.knowledge.atlas())

    def learn(self, traces: Mapping[Probe, Trace], now_s: float, how: str = PROBES) -> None:
        """Take over traces of all source ports of some pairs, and plan anew where they say something new."""
        found = self.knowledge.learn(traces, now_s, how)
        self.health.lose(found.silent | found.gone, now_s)
        self.health.hear(found.heard, now_s)
        self._absence.note(found, now_s)
        self._lookout.looked(now_s)
        self._plans.renew(self.knowledge.atlas())

    def look(self, now_s: float) -> dict[Pair, tuple[int, ...]]:
        """Which source ports to trace now: those of live flows, and a few others in turn; empty when it is not time."""
        return self._lookout.look(self._roster.ports(), now_s) if self.policy.dynamic else {}

    def looked(self, traces: Mapping[Probe, Trace], now_s: float) -> bool:
        """Whether the live pairs have to be learnt anew, since a port leads elsewhere, or a link is silent or back."""
        found = self.knowledge.learn(traces, now_s)
        self._absence.hear(found, now_s)
        self._lookout.reassure()
        back = found.heard & self.health.missing
        return bool(found.changed or back or found.silent - self.health.closed)

    def tick(self, now_s: float) -> None:
        """Use again what has been well for long enough."""
        if self.policy.dynamic and self.health.due(now_s):
            self._plans.rebuild()

    def blame(self, found: Diagnosis, now_s: float) -> None:
        """C4D names a path or a link: what is on it moves off, and nothing is put on it for a time.

        What is slow stays where an end of it may be to blame as well: no other way would help that, and all lose the
        room of this one. A missing link is closed already, and opens when probes cross it again.
        """
        end = found.syndrome is Syndrome.COMMUNICATION_SLOW and any(part.kind == "nic" for part in found.alternatives)
        hops = frozenset[str]() if end else self._hops_of(found.component) - self.health.missing
        if hops and self.policy.dynamic:
            self.health.blame(hops, now_s)
            self._plans.close(hops)

    def _hops_of(self, component: Component) -> frozenset[str]:
        if component.kind == "link":
            return frozenset({component.name})
        if component.kind != "path":
            return frozenset()
        ends = tuple(component.name.split(">"))
        mine = [self._roster.path(live).hops[1:-1] for live in self._roster if live.pair == ends]
        return frozenset(hop for hops in mine for hop in hops)

    def observe(self, background_bps: Mapping[str, float]) -> None:
        """Traffic of others, bit/s by hop: live flows go around it where that gains something."""
        self._plans.observe(background_bps)

    def count(self, received_bytes: Mapping[str, int], over_s: float) -> None:
        """What switch ports have received in the time since the last such reading, by hop: see `observe`."""
        self.observe(self._background.rates_bps(received_bytes, over_s))

    def feed(self, records: Iterable[ConnRecord], now_s: float) -> None:
        """Completion times from telemetry: shares follow them, and what is much slower than before is looked at.

        `now_s` is the time of the records' host.
        """
        flows = self._roster.by_connection()
        laps, amiss = self._tuning.feed(records, now_s)
        if not amiss.isdisjoint(flows):
            self._lookout.worry()
        for place, of_qps in laps.items():
            mine = flows.get(place, [])
            if len(mine) != len(of_qps):
                continue
            for live, lap in zip(mine, of_qps, strict=True):
                self._background.carried(self._roster.path(live).hops, lap.size_bytes)
            if len(mine) > 1 and self.policy.dynamic:
                fresh = self._tuning.judge(place, [live.weight for live in mine], of_qps, now_s)
                for live, weight in zip(mine, fresh or (), strict=False):
                    self._roster.weigh(live, weight)

    def turned(self) -> None:
        """Flows are being told to change: what telemetry has said of their shares so far does not count any more."""
        self._tuning.clear()
