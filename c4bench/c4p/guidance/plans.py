"""The plans of one fabric: a planner for all jobs, or one for each, and live flows told what they say."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation.shortfalls import no_route
from c4bench.c4p.guidance.live_flows import LiveFlow, LiveFlows
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.placement.planner import Planner
from c4bench.c4p.policy import PathPolicy
from c4bench.c4p.weights.shares import assign_idle_qps
from c4bench.model.fabric import Flow

_SLACK = 0.01


class Plans:
    """Places the roster's flows on what is known of the fabric, and tells them where they are to be.

    Nothing is planned before there is an `atlas`. What no way is open to is said in `remarks`.
    """

    def __init__(self, policy: PathPolicy, roster: LiveFlows, health: LinkHealth, remarks: list[str]) -> None:
        self.atlas: Atlas | None = None
        self._policy, self._roster, self._health, self._remarks = policy, roster, health, remarks
        self._planners: dict[str, Planner] = {}
        self._shares: dict[str, float] = {}
        self._others_bps: dict[str, float] = {}

    def grant(self, job: str, share: float) -> None:
        """Give a job the room of `share` times its demand, where jobs share by priority."""
        self._shares[job] = share if self._policy.sharing == "priority" else 1.0

    def add(self, flows: Sequence[Flow]) -> None:
        """Place further flows of the roster; live ones may have to make room."""
        for scope in sorted({self._scope(flow) for flow in flows}) if self.atlas else ():
            if scope not in self._planners:
                self._planners[scope] = self._fresh()
            planner = self._planners[scope]
            mine = [flow for flow in flows if self._scope(flow) == scope]
            for job in sorted({flow.job for flow in mine}):
                planner.grant(job, self._shares[job])
            self._remark(planner.add(mine, gain=None).stranded)
            self._relieve(planner)
            self._apply(planner)

    def remove(self, flows: Iterable[str]) -> None:
        """These flows have left the roster; others may take the room they leave."""
        gone = list(flows)
        for planner in self._planners.values() if gone else ():
            planner.remove(gone)
            if self._policy.dynamic and self._relieve(planner):
                self._apply(planner)

    def forget(self, job: str) -> None:
        """A job has ended, and its flows are removed."""
        self._shares.pop(job, None)
        if self._policy.scope == "job":
            self._planners.pop(job, None)

    def close(self, hops: Iterable[str]) -> None:
        """Move what is on these links elsewhere."""
        shut = frozenset(hops)
        for planner in self._planners.values():
            planner.close(shut)
            self._apply(planner)

    def observe(self, background_bps: Mapping[str, float]) -> None:
        """Traffic of others, bit/s by hop: live flows go around it where that gains something."""
        self._others_bps = self._known(background_bps)
        for planner in self._planners.values():
            planner.observe(self._reckoned())
            if self._relieve(planner):
                self._apply(planner)

    def renew(self, atlas: Atlas | None) -> None:
        """Plan on this atlas from now on."""
        self.atlas = atlas
        self.rebuild()

    def rebuild(self) -> None:
        """Plan on the fabric as it is now, from where every flow is now."""
        free: dict[str, list[LiveFlow]] = defaultdict(list)
        for live in self._roster:
            if not live.pinned:
                free[self._scope(live.flow)].append(live)
        self._planners = {scope: self._fresh() for scope in sorted(free)} if self.atlas else {}
        for scope, planner in self._planners.items():
            planner.adopt((live.flow, self._roster.planned(live)) for live in free[scope])
            planner.rebalance()
            self._apply(planner)

    def _fresh(self) -> Planner:
        """A planner on the fabric as it is."""
        assert self.atlas
        planner = Planner(self.atlas, Conditions(background_bps=self._reckoned(), shares=self._shares))
        planner.close(self._health.closed)
        return planner

    def _scope(self, flow: Flow) -> str:
        return flow.job if self._policy.scope == "job" else ""

    def _relieve(self, planner: Planner) -> bool:
        """Move live flows where a link is asked for more than any NIC sends or receives: else nobody gains by it."""
        loads = {hop: load for hop, load in planner.loads().items() if load != float("inf")}
        access = max((loads.get(hop, 0.0) for hop in self._roster.ends()), default=0.0)
        contended = max(loads.values(), default=0.0) > (1 + _SLACK) * access
        if contended:
            planner.rebalance()
        return contended

    def _reckoned(self) -> dict[str, float]:
        """Traffic that cannot be moved: of others, and pinned."""
        found = Counter(self._known(self._others_bps))
        found.update(self._roster.pinned_bps())
        return dict(found)

    def _known(self, bps: Mapping[str, float]) -> dict[str, float]:
        """What crosses links of the atlas."""
        hops = self.atlas.hops if self.atlas else ()
        return {hop: rate for hop, rate in bps.items() if hop in hops}

    def _apply(self, planner: Planner) -> None:
        """Have every flow's port and weight be what the plan says; one that is on its path already keeps its port."""
        for assignment in planner.assignments():
            live = self._roster[assignment.flow]
            if not live.planned or self._roster.planned(live).path.hops != assignment.path.hops:
                live.planned = assignment.path.source_port
        if any(live.weight != 1.0 for live in self._roster):
            self._divide(planner)
        else:
            for assignment in planner.assignments():
                live = self._roster[assignment.flow]
                self._roster.tell(live, live.planned, 1.0)

    def _divide(self, planner: Planner) -> None:
        """Share every connection's load anew; QPs without a share help the others."""
        for flow, part in assign_idle_qps(planner.divide(), planner.flows).items():
            self._roster.tell(self._roster[flow], self._roster[part.leader].planned, part.share)

    def _remark(self, stranded: Iterable[str]) -> None:
        if self.atlas is not None:
            conditions = Conditions()
            flows = [self._roster[flow].flow for flow in stranded]
            self._remarks += [no_route(flow, self.atlas, conditions, self._health.closed) for flow in flows]
