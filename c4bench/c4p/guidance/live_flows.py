"""Live flows: the source port and weight that each should use, and where the plan has it."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from zlib import crc32

import msgspec

from c4bench.c4p.knowledge.leaf_groups import Pair
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.c4p.placement.flow_placement import ECMP, Assignment
from c4bench.c4p.weights.tuning import Connection
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
        if live is not None:
            self._of_host[host_of_nic(live.flow.source)] -= 1
        if live is not None and (connection := _connection(live)):
            rest = [one for one in self._of_connection.pop(connection) if one is not live]
            if rest:
                self._of_connection[connection] = rest
        return live is not None

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

    def followed(self, host: str, connections: Collection[Connection]) -> Mapping[Connection, Sequence[LiveFlow]]:
        """The flows of those of a host's connections whose throughput matters; looked up when either changes.

        One QP that is left to ECMP has neither a known path nor a weight to tune.
        """
        named, followed = self._followed.get(host, (None, {}))
        if named is not connections:
            found = {one: self.of_connection(one) for one in connections}
            followed = {one: mine for one, mine in found.items() if len(mine) > 1 or (mine and mine[0].port)}
            self._followed[host] = connections, followed
        return followed


def _connection(live: LiveFlow) -> Connection | None:
    address = live.address
    return (address.comm, address.rank, address.peer, *live.pair) if address else None
