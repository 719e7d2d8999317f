"""The plans of one fabric, one planner for all jobs or one for each, and how live flows follow them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation.shortfalls import no_route
from c4bench.c4p.guidance.live_flows import LiveFlow, LiveFlows
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.placement.planner import Planner
from c4bench.c4p.policy import PathPolicy
from c4bench.c4p.weights.shares import assign_idle_qps
from c4bench.model.fabric import Flow

# A link counts as contended above the busiest NIC's load by this fraction.
_SLACK = 0.01


class Plans:
    """Places live flows on the known paths, and sets their source ports and weights.

    Nothing is planned before there is an `atlas`. Flows without an open path are named in `remarks`. `capacities` are
    bit/s by hop; empty if none are known.
    """

    def __init__(self, policy: PathPolicy, live_flows: LiveFlows, health: LinkHealth, remarks: list[str]) -> None:
        self.atlas: Atlas | None = None
        self._policy, self._live_flows, self._health, self._remarks = policy, live_flows, health, remarks
        self._planners: dict[str, Planner] = {}
        self._shares: dict[str, float] = {}
        self._background_bps: dict[str, float] = {}
        self.capacities: Mapping[str, float] = {}

    def by(self, policy: PathPolicy) -> "Plans":
        """New plans by another policy, of the same fabric."""
        plans = Plans(policy, self._live_flows, self._health, self._remarks)
        plans._background_bps, plans.capacities = self._background_bps, self.capacities
        plans.renew(self.atlas)
        return plans

    def set_share(self, job: str, share: float) -> None:
        """Count a job's flows with `share` times their demand, if jobs share by priority."""
        self._shares[job] = share if self._policy.sharing == "priority" else 1.0

    def add(self, flows: Sequence[Flow]) -> None:
        """Place further live flows; others may be moved to make room."""
        for planner, mine in self._by_planner(flows):
            self._remark(planner.add(mine, gain=None).stranded)
            self._rebalance_if_contended(planner)
            self._apply(planner, [flow.id for flow in mine])

    def adopt(self, flows: Sequence[Flow]) -> None:
        """Add live flows that run already on their planned ports; no flow moves but those without an open path."""
        for planner, mine in self._by_planner(flows):
            planner.adopt((flow, self._live_flows.planned(self._live_flows[flow.id])) for flow in mine)
            self._apply(planner)

    def _by_planner(self, flows: Sequence[Flow]) -> Iterator[tuple[Planner, list[Flow]]]:
        """Each planner with those of `flows` that it plans; none before there is an atlas."""
        for scope in sorted({self._scope(flow) for flow in flows}) if self.atlas else ():
            if scope not in self._planners:
                self._planners[scope] = self._new_planner()
            planner = self._planners[scope]
            mine = [flow for flow in flows if self._scope(flow) == scope]
            for job in sorted({flow.job for flow in mine}):
                planner.set_share(job, self._shares[job])
            yield planner, mine

    def remove(self, flows: Iterable[str]) -> None:
        """Remove flows that have ended; others may be moved to where they were.

        A planner that has none left goes too: where flows are placed does not depend on those that have ended.
        """
        ended = list(flows)
        for planner in self._planners.values() if ended else ():
            planner.remove(ended)
        self._planners = {scope: planner for scope, planner in self._planners.items() if planner.busy}
        for planner in self._planners.values() if ended else ():
            if self._policy.dynamic and self._rebalance_if_contended(planner):
                self._apply(planner)

    def forget(self, job: str) -> None:
        """Forget a job that has ended and whose flows were removed."""
        self._shares.pop(job, None)
        if self._policy.scope == "job":
            self._planners.pop(job, None)

    def close(self, hops: Iterable[str]) -> None:
        """Move the flows on these links to other paths."""
        closed = frozenset(hops)
        for planner in self._planners.values():
            planner.close(closed)
            self._apply(planner)

    def observe(self, background_bps: Mapping[str, float]) -> None:
        """Replace the traffic of others, bit/s by hop; live flows are moved if that gains enough."""
        self._background_bps = self._on_known_links(background_bps)
        for planner in self._planners.values():
            planner.observe(self._immovable_bps())
            if self._rebalance_if_contended(planner):
                self._apply(planner)

    def set_capacities(self, bps: Mapping[str, float]) -> None:
        """Plan with these capacities from now on; see `PathController.set_capacities`."""
        self.capacities = bps
        self.rebuild()

    def renew(self, atlas: Atlas | None) -> None:
        """Plan on this atlas from now on."""
        self.atlas = atlas
        self.rebuild()

    def rebuild(self) -> None:
        """Make new planners for the present fabric, starting from the flows' planned paths."""
        movable: dict[str, list[LiveFlow]] = defaultdict(list)
        for live in self._live_flows:
            if not live.pinned:
                movable[self._scope(live.flow)].append(live)
        self._planners = {scope: self._new_planner() for scope in sorted(movable)} if self.atlas else {}
        for scope, planner in self._planners.items():
            planner.adopt((live.flow, self._live_flows.planned(live)) for live in movable[scope])
            planner.rebalance()
            self._apply(planner)

    def _new_planner(self) -> Planner:
        """A planner without flows for the present fabric."""
        assert self.atlas
        conditions = Conditions(self._known_capacities(), background_bps=self._immovable_bps(), shares=self._shares)
        planner = Planner(self.atlas, conditions)
        planner.close(self._health.closed)
        return planner

    def _known_capacities(self) -> dict[str, float] | None:
        """The capacity of every link of the atlas; None if no capacities are known, so that all count alike."""
        if not self.capacities or not self.atlas:
            return None
        fastest = max(self.capacities.values())
        return {hop: self.capacities.get(hop, fastest) for hop in self.atlas.hops}

    def _scope(self, flow: Flow) -> str:
        return flow.job if self._policy.scope == "job" else ""

    def _rebalance_if_contended(self, planner: Planner) -> bool:
        """Move live flows if one may become faster: a bond's ports are not level, or a link has more load than any NIC.

        A NIC's load is the mean of its ports'.
        """
        loads = {hop: load for hop, load in planner.loads().items() if load != float("inf")}
        ports = [[loads[hop] for hop in links if hop in loads] for links in self._live_flows.access_links()]
        level = [(max(of_nic), sum(of_nic) / len(of_nic)) for of_nic in ports if of_nic]
        busiest = max((mean for _, mean in level), default=0.0)
        level.append((max(loads.values(), default=0.0), busiest))
        contended = any(worst > (1 + _SLACK) * mean for worst, mean in level)
        if contended:
            planner.rebalance()
        return contended

    def _immovable_bps(self) -> dict[str, float]:
        """Traffic that cannot be moved, bit/s by hop: of others, and of pinned flows."""
        total_bps = Counter(self._on_known_links(self._background_bps))
        total_bps.update(self._live_flows.pinned_bps())
        return dict(total_bps)

    def _on_known_links(self, bps: Mapping[str, float]) -> dict[str, float]:
        hops = self.atlas.hops if self.atlas else ()
        return {hop: rate for hop, rate in bps.items() if hop in hops}

    def _apply(self, planner: Planner, new: Collection[str] = ()) -> None:
        """Set every flow's port and weight as planned; a flow that is on its path already keeps its port.

        `new` are flows that have come, if nothing else has changed.
        """
        for assignment in planner.assignments():
            live = self._live_flows[assignment.flow]
            if not live.planned or self._live_flows.planned(live).path.hops != assignment.path.hops:
                live.planned = assignment.path.source_port
        if any(live.weight != 1.0 for live in self._live_flows):
            self._divide(planner, new)
        else:
            for assignment in planner.assignments():
                live = self._live_flows[assignment.flow]
                self._live_flows.assign(live, live.planned, 1.0)

    def _divide(self, planner: Planner, new: Collection[str]) -> None:
        """Divide every connection's load again; QPs without a share use the paths of others."""
        for flow, part in assign_idle_qps(planner.divide(new), planner.flows).items():
            self._live_flows.assign(self._live_flows[flow], self._live_flows[part.leader].planned, part.share)

    def _remark(self, stranded: Iterable[str]) -> None:
        if self.atlas is not None:
            conditions = Conditions()
            flows = [self._live_flows[flow].flow for flow in stranded]
            self._remarks += [no_route(flow, self.atlas, conditions, self._health.closed) for flow in flows]
