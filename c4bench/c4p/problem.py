"""The planning problem in numbers: what each flow may choose between, and what is loaded already."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from c4bench.c4p.atlas import Atlas, Routes
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path

Way = tuple[int, ...]


class Choice(NamedTuple):
    """What the flows of one set of routes may choose between.

    `common` are the links that every way crosses, `ways` the rest of each, `table` the same as an array (way, link);
    `origin` is each way's place in the routes.
    """

    origin: Sequence[int]
    common: Way
    ways: tuple[Way, ...]
    table: npt.NDArray[np.intp]


class _Choices:
    """Choices by routes; built once for each set of routes, tables once for each set of ways."""

    def __init__(self, dead: frozenset[int]) -> None:
        self._dead = dead
        # By identity: the atlas shares the hops of equal routes and keeps them alive, and hashing them would cost more.
        self._by_routes: dict[int, Choice] = {}
        self._tables: dict[tuple[Way, ...], npt.NDArray[np.intp]] = {}

    def of(self, routes: Routes) -> Choice:
        choice = self._by_routes.get(id(routes.hops))
        if choice is None:
            choice = self._by_routes[id(routes.hops)] = self._build(routes.hops)
        return choice

    def _build(self, hops: tuple[Way, ...]) -> Choice:
        origin: Sequence[int] = range(len(hops))
        if self._dead:
            origin = [index for index, way in enumerate(hops) if self._dead.isdisjoint(way)]
        # All routes of a pair have the same length, and a link has its place: what is common fills a whole column.
        columns = list(zip(*[hops[index] for index in origin], strict=True))
        constant = [column.count(column[0]) == len(column) for column in columns]
        varying = [column for column, same in zip(columns, constant, strict=True) if not same]
        common = tuple([column[0] for column, same in zip(columns, constant, strict=True) if same])
        ways = tuple(zip(*varying, strict=True)) or ((),) * len(origin)
        table = self._tables.get(ways)
        if table is None:
            table = self._tables[ways] = np.array(ways, dtype=np.intp)
        return Choice(origin, common, ways, table)


class Problem:
    """Flows against links, in an order of its own, so that the order of the input cannot matter.

    `links` are hop addresses; `weight[i]` turns bit/s on link i into load (1 without capacities, then loads are in
    bit/s). `flows` are those to place, largest first; `choices[i]` belongs to `flows[i]`; `fixed_load` is what the
    fixed flows put on each link.
    """

    def __init__(
        self, flows: Sequence[Flow], atlas: Atlas, capacities: Mapping[str, float] | None, fixed: Mapping[str, Path]
    ) -> None:
        _check(flows, fixed)
        known = set(atlas.hops)
        self.links = (*atlas.hops, *sorted({hop for path in fixed.values() for hop in path.hops} - known))
        capacity = _capacities(self.links, capacities)
        dead = frozenset(np.flatnonzero(capacity <= 0).tolist())
        self.weight = np.divide(1.0, capacity, out=np.zeros_like(capacity), where=capacity > 0)
        self.fixed_load = self._fixed_load(flows, fixed)
        free = sorted((flow for flow in flows if flow.id not in fixed), key=lambda flow: (-flow.demand_bps, flow.id))
        self.flows: list[Flow] = []
        self.routes: list[Routes] = []
        self.choices: list[Choice] = []
        choices = _Choices(dead)
        for flow in free:
            routes = atlas.routes(flow.source, flow.destination)
            choice = choices.of(routes)
            if choice.ways:
                self.flows.append(flow)
                self.routes.append(routes)
                self.choices.append(choice)

    def unavoidable_load(self) -> npt.NDArray[np.float64]:
        """The load on each link before anything is chosen."""
        links = [choice.common for choice in self.choices]
        demands = np.repeat([flow.demand_bps for flow in self.flows], [len(common) for common in links])
        bits = np.zeros_like(self.weight)
        np.add.at(bits, np.array([link for common in links for link in common], dtype=np.intp), demands)
        load: npt.NDArray[np.float64] = self.fixed_load + bits * self.weight
        return load

    def paths(self, chosen: Iterable[int]) -> dict[str, Path]:
        """Paths by flow id, given the index of each flow's way in its choice."""
        placed = {}
        for flow, routes, choice, way in zip(self.flows, self.routes, self.choices, chosen, strict=True):
            origin = choice.origin[way]
            hops = tuple([self.links[hop] for hop in routes.hops[origin]])
            placed[flow.id] = Path(routes.source_ports[origin], hops)
        return placed

    def _fixed_load(self, flows: Sequence[Flow], fixed: Mapping[str, Path]) -> npt.NDArray[np.float64]:
        number = {hop: index for index, hop in enumerate(self.links)}
        load = np.zeros_like(self.weight)
        for flow in sorted(flows, key=lambda flow: flow.id) if fixed else ():
            for hop in fixed[flow.id].hops if flow.id in fixed else ():
                load[number[hop]] += flow.demand_bps * self.weight[number[hop]]
        return load


def _check(flows: Sequence[Flow], fixed: Mapping[str, Path]) -> None:
    ids = {flow.id for flow in flows}
    if len(ids) != len(flows):
        raise UsageError("two flows have the same id; give every flow its own")
    if unknown := sorted(fixed.keys() - ids):
        raise UsageError(f"fixed flow {unknown[0]} is not among the flows; give its demand with the others")
    if bad := [flow.id for flow in flows if not 0 <= flow.demand_bps < float("inf")]:
        raise UsageError(f"flow {min(bad)} has no sensible demand; give bit/s, zero or more")


def _capacities(links: Sequence[str], capacities: Mapping[str, float] | None) -> npt.NDArray[np.float64]:
    if capacities is None:
        return np.ones(len(links))
    if missing := [link for link in links if link not in capacities]:
        raise UsageError(
            f"hop {missing[0]} has no capacity; give the rate of every link in the atlas, 0 for a dead one"
        )
    return np.array([capacities[link] for link in links], dtype=float)
