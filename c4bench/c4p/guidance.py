"""Live flows with the source ports and weights that plans give them; one planner for all jobs, or one for each."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from zlib import crc32

import msgspec

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation import no_route
from c4bench.c4p.knowledge.atlas import Atlas, Pair
from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.c4p.placement.planner import ECMP, Assignment, Planner
from c4bench.c4p.policy import PathPolicy
from c4bench.c4p.shares import assign_idle_qps
from c4bench.c4p.tuning import Connection
from c4bench.model.fabric import Flow, LinkLoad, Path, host_of_nic
from c4bench.model.qp_address import QpAddress, connection_key

# Weights closer than this are the same.
_SAME_WEIGHT = 1e-3


class LiveFlow(msgspec.Struct):
    """A live flow, with the source port and the share of its connection's load that guidance gives it.

    `planned` is the port that the plan gives it; `port` differs while an idle QP uses the path of another. A `pinned`
    flow cannot be moved.
    """

    flow: Flow
    address: QpAddress | None
    port: int
    planned: int
    weight: float
    pinned: bool = False

    @property
    def pair(self) -> Pair:
        """The flow's NICs."""
        return self.flow.source, self.flow.destination


class LiveFlows:
    """Live flows by id.

    `changes` counts the changes of ports and weights so far; `moves` those of ports, and flows that began or ended.
    """

    def __init__(self, knowledge: PathKnowledge) -> None:
        self.changes, self.moves = 0, 0
        self._knowledge = knowledge
        self._live: dict[str, LiveFlow] = {}
        self._of_host: Counter[str] = Counter()
        self._of_connection: dict[Connection, list[LiveFlow]] = {}
        # By pair, the flows of no connection that hosts name, as of attached programs, by the last part of their ids.
        self._unnamed: defaultdict[Pair, dict[str, LiveFlow]] = defaultdict(dict)
        # The connections that hosts have named, and the flows of those that are followed.
        self._followed: dict[str, tuple[Collection[Connection], dict[Connection, Sequence[LiveFlow]]]] = {}

    def __contains__(self, flow: object) -> bool:
        return flow in self._live

    def __getitem__(self, flow: str) -> LiveFlow:
        return self._live[flow]

    def __iter__(self) -> Iterator[LiveFlow]:
        return iter(self._live.values())

    def of_host(self, host: str) -> int:
        """How many flows a host's NICs send."""
        return self._of_host[host]

    def add(self, flow: Flow, weight: float, port: int = 0) -> None:
        """Add a flow on its present port; 0 leaves it to ECMP for now."""
        live = self._live[flow.id] = LiveFlow(flow, QpAddress.parse(flow), port, port, weight)
        self._of_host[host_of_nic(flow.source)] += 1
        if connection := _connection(live):
            mine = self._of_connection.setdefault(connection, [])
            mine.append(live)
            mine.sort(key=lambda one: one.address or ())
        else:
            self._unnamed[live.pair][_tail(flow)] = live
        self._move()

    def _move(self) -> None:
        self.moves += 1
        self._followed.clear()

    def remove(self, flows: Iterable[str]) -> list[str]:
        """Remove flows that have ended; return those that were live."""
        return [flow for flow in flows if self._remove(flow)]

    def _remove(self, flow: str) -> bool:
        live = self._live.pop(flow, None)
        self._move()
        if live is None:
            return False
        self._of_host[host_of_nic(live.flow.source)] -= 1
        if connection := _connection(live):
            rest = [one for one in self._of_connection.pop(connection) if one is not live]
            if rest:
                self._of_connection[connection] = rest
        else:
            self._unnamed[live.pair].pop(_tail(live.flow), None)
        return True

    def path(self, live: LiveFlow) -> Path:
        """The path of a flow's present port; `ECMP` if it is not known."""
        return self._knowledge.path(live.pair, live.port) or ECMP

    def planned(self, live: LiveFlow) -> Assignment:
        """The path that the plan gives a flow; `ECMP` if it is not known."""
        path = self._knowledge.path(live.pair, live.planned) or ECMP
        return Assignment(live.flow.id, path, *live.pair)

    def assign(self, live: LiveFlow, port: int, weight: float) -> None:
        """Set a flow's port and weight; a port that takes the same path as the present one changes nothing."""
        current, new = (self._knowledge.path(live.pair, number) for number in (live.port, port))
        if current is None or new is None or current.hops != new.hops:
            self.changes += live.port != port
            live.port = port
            self._move()
        self.set_weight(live, weight)

    def place_randomly(self, flows: Iterable[Flow]) -> None:
        """Give each of these flows that has no port one whose path is known, by chance but always the same."""
        for live in (self[flow.id] for flow in flows):
            if not live.port and (ports := sorted(self._knowledge.entries(live.pair))):
                self._move()
                live.port = ports[crc32(live.flow.id.encode()) % len(ports)]

    def pin(self, live: LiveFlow, port: int) -> None:
        """Leave a flow that cannot be moved on this port."""
        live.pinned, live.port, live.planned = True, port, port
        self._move()

    def set_weight(self, live: LiveFlow, weight: float) -> None:
        """Set a flow's weight, if it differs enough."""
        if abs(live.weight - weight) > _SAME_WEIGHT:
            self.changes += 1
            live.weight = weight

    def ports(self) -> dict[Pair, list[int]]:
        """The source ports that flows use, by pair of NICs in order."""
        ports: dict[Pair, list[int]] = {live.pair: [] for live in sorted(self, key=lambda live: live.pair)}
        for live in self:
            if live.port:
                ports[live.pair].append(live.port)
        return ports

    def access_links(self) -> list[frozenset[str]]:
        """The links by which paths leave each source, and those by which they reach each destination: one by port."""
        known = [live.pair for live in self if self._knowledge.entries(live.pair)]
        return [
            frozenset(entry.hops[end] for entry in self._knowledge.entries(pair).values())
            for end in (0, -1)
            for pair in {pair[end]: pair for pair in known}.values()
        ]

    def pinned_bps(self) -> dict[str, float]:
        """The demand of flows that cannot be moved, bit/s by hop."""
        demand_bps: dict[str, float] = defaultdict(float)
        for live in self:
            for hop in self.path(live).hops if live.pinned else ():
                demand_bps[hop] += live.flow.demand_bps
        return demand_bps

    def link_loads(
        self, rates_bps: Mapping[str, float], nics_bps: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, LinkLoad]:
        """What flows with a known path bring to each link if all send at once, by hop.

        `rates_bps` are the known rates of links by hop, `nics_bps` those of NICs by name: a NIC sends no faster, and
        its flows share its rate by their demands.
        """
        of_connection: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        of_nic: defaultdict[str, float] = defaultdict(float)
        for live in self:
            of_connection[connection_key(live.flow)] += live.flow.demand_bps
            of_nic[live.flow.source] += live.flow.demand_bps
        part = {nic: min(1.0, nics_bps.get(nic, bps) / bps) for nic, bps in of_nic.items() if bps}
        offered: defaultdict[str, list[float]] = defaultdict(list)
        for live in self:
            sent_bps = live.weight * of_connection[connection_key(live.flow)] * part.get(live.flow.source, 1.0)
            for hop in self.path(live).hops:
                offered[hop].append(sent_bps)
        return {hop: LinkLoad(math.fsum(bps), len(bps), rates_bps.get(hop)) for hop, bps in offered.items()}

    def of_connection(self, connection: Connection) -> Sequence[LiveFlow]:
        """The flows of a connection, in order of their QPs; none if it has none."""
        return self._of_connection.get(connection, ())

    def of_qp(self, pair: Pair, qp: int) -> LiveFlow | None:
        """The flow of a QP between these NICs whose connection is not named."""
        return self._unnamed[pair].get(f"{qp}.0")

    def followed(self, host: str, connections: Collection[Connection]) -> Mapping[Connection, Sequence[LiveFlow]]:
        """The flows of those of a host's connections whose throughput matters; looked up when either changes.

        One QP that is left to ECMP has neither a known path nor a weight to tune. A connection between NICs of flows
        that hosts do not name may be theirs (`of_qp`): it has no flows to tune.
        """
        named, followed = self._followed.get(host, (None, {}))
        if named is not connections:
            found = {one: self.of_connection(one) for one in connections}
            unnamed = {one: mine for one, mine in found.items() if not mine and self._unnamed.get(one[3:])}
            followed = {one: mine for one, mine in found.items() if len(mine) > 1 or (mine and mine[0].port)} | unnamed
            self._followed[host] = connections, followed
        return followed


def _tail(flow: Flow) -> str:
    return flow.id.rpartition("/")[2]


def _connection(live: LiveFlow) -> Connection | None:
    address = live.address
    return (address.comm, address.rank, address.peer, *live.pair) if address else None


# A link counts as contended above the busiest NIC's load by this fraction.
_SLACK = 0.01


class Plans:
    """Places live flows on the known paths, and sets their source ports and weights.

    Nothing is planned before there is an `atlas`. Flows without an open path are named in `remarks`. `capacities` are
    bit/s by hop, and `planes` those of the ports of bonds, by hop; empty if none are known.
    """

    def __init__(self, policy: PathPolicy, live_flows: LiveFlows, health: LinkHealth, remarks: list[str]) -> None:
        self.atlas: Atlas | None = None
        self._policy, self._live_flows, self._health, self._remarks = policy, live_flows, health, remarks
        self._planners: dict[str, Planner] = {}
        self._shares: dict[str, float] = {}
        self._background_bps: dict[str, float] = {}
        self.capacities: Mapping[str, float] = {}
        self.planes: Mapping[str, int] = {}

    def by(self, policy: PathPolicy) -> "Plans":
        """New plans by another policy, of the same fabric."""
        plans = Plans(policy, self._live_flows, self._health, self._remarks)
        plans._background_bps, plans.capacities, plans.planes = self._background_bps, self.capacities, self.planes
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
            planner.spread()
            self._apply(planner)

    def _new_planner(self) -> Planner:
        """A planner without flows for the present fabric."""
        assert self.atlas
        conditions = Conditions(
            self._known_capacities(), background_bps=self._immovable_bps(), shares=self._shares, planes=self.planes
        )
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
            planner.spread()
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
