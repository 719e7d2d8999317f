"""The flows that run: where each is told to be, where the plan has it, and what share it is told to carry."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from c4bench.c4p.knowledge.path_knowledge import Pair, PathKnowledge
from c4bench.c4p.placement.flow_placement import Assignment
from c4bench.c4p.placement.planner import ECMP
from c4bench.c4p.weights.tuning import Connection
from c4bench.model.fabric import Flow, Path
from c4bench.model.qp_address import QpAddress

# Shares closer than this are the same.
_SAME = 1e-3


class LiveFlow(msgspec.Struct):
    """A flow that runs: where it is told to be, and the share of its connection's load it is told to carry.

    `planned` is the port the plan has for it; it is elsewhere while it helps another QP of its connection.
    """

    flow: Flow
    address: QpAddress | None
    port: int = 0
    planned: int = 0
    weight: float = 1.0
    pinned: bool = False

    @property
    def pair(self) -> Pair:
        """Its NICs."""
        return self.flow.source, self.flow.destination


class LiveFlows:
    """Live flows by id. `changes` counts what has been asked of them."""

    def __init__(self, knowledge: PathKnowledge) -> None:
        self.changes = 0
        self._knowledge = knowledge
        self._live: dict[str, LiveFlow] = {}

    def __contains__(self, flow: object) -> bool:
        return flow in self._live

    def __getitem__(self, flow: str) -> LiveFlow:
        return self._live[flow]

    def __iter__(self) -> Iterator[LiveFlow]:
        return iter(self._live.values())

    def add(self, flow: Flow, weight: float) -> None:
        """A flow begins, left to ECMP so far."""
        self._live[flow.id] = LiveFlow(flow, QpAddress.parse(flow), weight=weight)

    def drop(self, flows: Iterable[str]) -> list[str]:
        """These flows have ended; which of them were live."""
        return [flow for flow in flows if self._live.pop(flow, None) is not None]

    def path(self, live: LiveFlow) -> Path:
        """Where a flow is, as far as that is known."""
        return self._knowledge.path(live.pair, live.port) or ECMP

    def planned(self, live: LiveFlow) -> Assignment:
        """Where the plan has a flow, as far as that is known."""
        path = self._knowledge.path(live.pair, live.planned) or ECMP
        return Assignment(live.flow.id, path, *live.pair)

    def tell(self, live: LiveFlow, port: int, weight: float) -> None:
        """Have a flow be elsewhere, or carry another share, where that makes a difference."""
        here, there = (self._knowledge.path(live.pair, one) for one in (live.port, port))
        if here is None or there is None or here.hops != there.hops:
            self.changes += live.port != port
            live.port = port
        self.weigh(live, weight)

    def weigh(self, live: LiveFlow, weight: float) -> None:
        """Have a flow carry another share, where that makes a difference."""
        if abs(live.weight - weight) > _SAME:
            self.changes += 1
            live.weight = weight

    def ports(self) -> dict[Pair, list[int]]:
        """By pair of NICs, in order, the source ports that flows have been told to use."""
        found: dict[Pair, list[int]] = {live.pair: [] for live in sorted(self, key=lambda live: live.pair)}
        for live in self:
            if live.port:
                found[live.pair].append(live.port)
        return found

    def ends(self) -> frozenset[str]:
        """The links of all flows' NICs."""
        paths = [self.path(live).hops for live in self]
        return frozenset(hop for hops in paths if hops for hop in (hops[0], hops[-1]))

    def pinned_bps(self) -> dict[str, float]:
        """What flows that cannot be moved ask of links, by hop."""
        found: dict[str, float] = defaultdict(float)
        for live in self:
            for hop in self.path(live).hops if live.pinned else ():
                found[hop] += live.flow.demand_bps
        return found

    def by_connection(self) -> dict[Connection, list[LiveFlow]]:
        """The flows of every connection, in order of their QPs."""
        found: dict[Connection, list[tuple[QpAddress, LiveFlow]]] = defaultdict(list)
        for live in self:
            if address := live.address:
                found[address.comm, address.rank, address.peer, *live.pair].append((address, live))
        return {name: [live for _, live in sorted(mine, key=lambda one: one[0])] for name, mine in found.items()}
