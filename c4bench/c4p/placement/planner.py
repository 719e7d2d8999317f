"""Places all flows of one fabric on paths, and keeps link loads level while flows come and go and links fail."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from c4bench.c4p.conditions import Conditions, IndexArray
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.placement.link_load_table import UNPLACED, LinkLoadTable
from c4bench.c4p.placement.path_choices import EcmpGroupTable, PathChoice, PathChoices
from c4bench.c4p.placement.search import improve, lower_bound, place_greedily, restart
from c4bench.c4p.shares import MAX_DIVIDED, shares, spread, worst_load
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path
from c4bench.model.qp_address import connection_key

ECMP = Path(source_port=0, hops=())


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A flow's path, and the ports at its ends; for a bond these are the chosen ports."""

    flow: str
    path: Path
    source: str
    destination: str


class PlannedFlow(msgspec.Struct, eq=False, gc=False):
    """A flow of the plan, with its path choice and its slot in the link load table; a stranded flow has neither.

    `demand_bps` includes its job's share and its QP's weight; `crossing` is set if it may cross planes.
    """

    flow: Flow
    demand_bps: float
    choice: PathChoice | None = None
    slot: int = UNPLACED
    crossing: bool = False


class FlowPlacement:
    """The planned flows of one link load table; `by_slot` are those that have a slot."""

    def __init__(self, choices: PathChoices, loads: LinkLoadTable) -> None:
        self.by_slot: dict[int, PlannedFlow] = {}
        self._choices, self._loads = choices, loads

    def choose(self, flows: Sequence[PlannedFlow]) -> None:
        """Give each flow its path choice: within its plane if a path is open there, else across planes, else none."""
        for crossing in (False, True):
            left = [planned for planned in flows if not planned.choice]
            if not left:
                return
            ends = [(planned.flow.source, planned.flow.destination) for planned in left]
            choices = self._choices.between(ends, crossing)
            open_links = self._loads.open_links()
            for planned, choice in zip(left, choices, strict=True):
                if open_links.has_path(choice.group, choice.common):
                    planned.choice, planned.crossing = choice, crossing

    def add(self, flows: Sequence[PlannedFlow]) -> IndexArray:
        """Add flows that have a path choice to the link load table, not placed yet; return their slots."""
        choices = [planned.choice for planned in flows if planned.choice]
        demands = [planned.demand_bps for planned in flows]
        slots = self._loads.add([choice.group for choice in choices], demands, [choice.common for choice in choices])
        for planned, slot in zip(flows, slots.tolist(), strict=True):
            planned.slot = slot
            self.by_slot[slot] = planned
        return slots

    def remove(self, planned: PlannedFlow) -> None:
        """Free a flow's slot; it is stranded until it is given a path choice again."""
        if planned.choice:
            self._loads.remove(planned.slot, planned.choice.common)
            del self.by_slot[planned.slot]
            planned.choice, planned.slot, planned.crossing = None, UNPLACED, False

    def path_index(self, planned: PlannedFlow, current: Assignment, crossed: Sequence[int]) -> int | None:
        """The number of the path that a live flow uses, over the links `crossed`; None if it is not usable."""
        if planned.choice is None:
            return None
        index = self._choices.index_of(planned.choice, current.source, current.destination, current.path.hops)
        return index if np.isfinite(self._loads.load[list(crossed)]).all() else None

    def assignment(self, planned: PlannedFlow) -> Assignment:
        """The path of a placed flow."""
        assert planned.choice
        source, destination, path = self._choices.path(planned.choice, int(self._loads.path[planned.slot]))
        return Assignment(planned.flow.id, path, source, destination)

    def open_paths(self, planned: PlannedFlow) -> dict[int, Path]:
        """The usable paths of a flow by number; none if it is stranded."""
        choice, groups = planned.choice, self._loads.groups
        if choice is None or not np.isfinite(self._loads.load[list(choice.common)]).all():
            return {}
        table = groups.table[choice.group, : groups.sizes[choice.group]]
        numbers: list[int] = np.flatnonzero(np.isfinite(self._loads.load[table]).all(axis=1)).tolist()
        return {number: self._choices.path(choice, number)[2] for number in numbers}

    def move(self, planned: PlannedFlow, path: int) -> None:
        """Move a placed flow to another of its paths."""
        self._loads.unplace(planned.slot)
        self._loads.place(planned.slot, path)

    def crossed(self, planned: PlannedFlow) -> list[int]:
        """The links that a flow crosses; none if it is stranded."""
        return [*planned.choice.common, *self._loads.links(planned.slot)] if planned.choice else []


# Search budgets, in evaluations of a link's flows. They are not seconds, so that a slower machine makes the same plan.
_BUDGET = 20_000
_LIVE_BUDGET = 150
# A live flow moves only if a link becomes lighter by more than this fraction.
_GAIN = 0.05
# QPs are spread over other paths if the worst link then becomes lighter by more than this fraction.
_SPREAD_GAIN = 0.01
# A division of new connections alone is good enough if the worst link is heavier by no more than this fraction.
_AS_GOOD = 0.003

# For up to so many flows, other orders are tried: that costs little, and one flow more on a link matters.
_FEW = 256
_RESTARTS = 16
_RESTART_BUDGET = 300


class Change(msgspec.Struct, frozen=True):
    """What a step of planning changed, each in order of the flows' ids.

    `placed` had no path before. `moved` are live flows that must move now. `stranded` are the flows of the step that
    have no open path; they are left to ECMP until one opens.
    """

    placed: tuple[Assignment, ...] = ()
    moved: tuple[Assignment, ...] = ()
    stranded: tuple[str, ...] = ()


class Planner:
    """The plan of one fabric. Every step lowers the worst link load, then the next worst, with few moves.

    It is a heuristic; `evaluation` computes the optimum for comparison. The same steps with the same arguments
    give the same plan, whatever the order of flows in a step. Raises UsageError for invalid conditions.
    """

    def __init__(self, atlas: Atlas, conditions: Conditions | None = None) -> None:
        self._conditions = conditions or Conditions()
        self._conditions.check(atlas.hops)
        self._links = {hop: index for index, hop in enumerate(atlas.hops)}
        groups = EcmpGroupTable(len(atlas.hops))
        weights, background = self._conditions.weights(atlas.hops), self._conditions.background(atlas.hops)
        choices = PathChoices(atlas, groups, self._conditions)
        self._loads = LinkLoadTable(groups, weights, background)
        self._placement = FlowPlacement(choices, self._loads)
        self._planned: dict[str, PlannedFlow] = {}

    @property
    def flows(self) -> tuple[Flow, ...]:
        """All flows of the plan, in order of their ids."""
        return tuple(self._planned[flow].flow for flow in sorted(self._planned))

    @property
    def busy(self) -> bool:
        """Whether there are flows."""
        return bool(self._planned)

    def assignments(self) -> tuple[Assignment, ...]:
        """The paths of all placed flows, in order of the flows' ids."""
        flows = (self._planned[flow] for flow in sorted(self._planned))
        return tuple(self._placement.assignment(planned) for planned in flows if planned.choice)

    def loads(self) -> dict[str, float]:
        """Load by hop: bit/s, or a fraction if the conditions have capacities; infinite for closed links."""
        return dict(zip(self._links, self._loads.load.tolist(), strict=False))

    def add(self, flows: Iterable[Flow], gain: float | None = _GAIN) -> Change:
        """Place further flows. A live flow moves only if a link becomes lighter by more than the fraction `gain`.

        With `gain` None no live flow moves. Raises UsageError for an id that is in use, and for a negative demand.
        """
        new = list(flows)
        self._check(new)
        return self._place(self._register(new), gain)

    def adopt(self, live: Iterable[tuple[Flow, Assignment]]) -> None:
        """Add flows that run already, on their present paths; those on an unknown or closed path are placed again.

        `assignments` then has the paths. Raises UsageError as `add` does.
        """
        given = sorted(live, key=lambda pair: pair[0].id)
        self._check([flow for flow, _ in given])
        flows = self._register([flow for flow, _ in given])
        self._placement.choose(flows)
        indices = [
            self._placement.path_index(planned, current, self._known_links(current.path.hops))
            for planned, (_, current) in zip(flows, given, strict=True)
        ]
        kept = [(planned, index) for planned, index in zip(flows, indices, strict=True) if index is not None]
        slots = self._placement.add([planned for planned, _ in kept])
        self._loads.place_all(slots, np.array([index for _, index in kept], dtype=np.intp))
        unplaced = [planned for planned, index in zip(flows, indices, strict=True) if index is None]
        for planned in unplaced:
            planned.choice, planned.crossing = None, False
        self._place(unplaced, None)

    def set_share(self, job: str, share: float) -> None:
        """Count the flows that this job adds from now on with `share` times their demand.

        Raises UsageError for a share that is not positive.
        """
        conditions = msgspec.structs.replace(self._conditions, shares=dict(self._conditions.shares) | {job: share})
        conditions.check(tuple(self._links))
        self._conditions = conditions

    def remove(self, flows: Iterable[str]) -> None:
        """Remove flows that have ended; the others stay on their paths until `rebalance`."""
        for flow in flows:
            if (planned := self._planned.pop(flow, None)) is not None:
                self._placement.remove(planned)

    def close(self, hops: Iterable[str], gain: float | None = None) -> Change:
        """Stop using these links, and move the flows on them. Others move only with a `gain`, as for `add`."""
        self._loads.close(self._known_links(hops))
        closed = frozenset(self._loads.closed())
        affected = [
            planned
            for planned in self._placement.by_slot.values()
            if not closed.isdisjoint(self._placement.crossed(planned))
        ]
        return self._place_again(affected, gain)

    def reopen(self, hops: Iterable[str], gain: float | None = _GAIN) -> Change:
        """Use these links again: for flows that are stranded or cross planes, then for others that gain by it."""
        self._loads.reopen(self._known_links(hops))
        return self._place_again([flow for flow in self._planned.values() if not flow.choice or flow.crossing], gain)

    def observe(self, background_bps: Mapping[str, float]) -> None:
        """Replace the other traffic, bit/s by hop; no flow moves until `rebalance`.

        Raises UsageError for a rate that is negative or not finite.
        """
        conditions = msgspec.structs.replace(self._conditions, background_bps=background_bps)
        hops = tuple(self._links)
        conditions.check(hops)
        self._loads.add_background(conditions.background(hops) - self._conditions.background(hops))
        self._conditions = conditions

    def rebalance(self, gain: float = _GAIN) -> Change:
        """Move live flows if that makes a link lighter by more than the fraction `gain`."""
        return self._place((), gain)

    def spread(self) -> None:
        """Move QPs to the paths over which the best division of all connections goes, if that gains enough.

        QPs that are placed one by one, each with an equal part, may leave a link with more than the best division
        would: such as where links of several leaves are down.
        """
        members: dict[tuple[str, str, str], list[PlannedFlow]] = {}
        for planned in sorted(self._placement.by_slot.values(), key=lambda planned: planned.flow.id):
            members.setdefault(connection_key(planned.flow), []).append(planned)
        open_paths = {key: self._placement.open_paths(flows[0]) for key, flows in members.items()}
        if sum(map(len, open_paths.values())) > MAX_DIVIDED or not all(open_paths.values()):
            return
        if any(_choose_differently(flows) for flows in members.values()):
            return
        worst = self._divided_load()
        if worst <= lower_bound(self._loads) * (1 + _SPREAD_GAIN):
            return
        demands = {
            key: (sum(planned.flow.demand_bps for planned in flows), flows[0].flow.job)
            for key, flows in members.items()
        }
        best = spread(demands, {key: list(paths.values()) for key, paths in open_paths.items()}, self._conditions)
        if worst <= best.least * (1 + _SPREAD_GAIN):
            return
        before = self._loads.path.copy()
        for key, flows in members.items():
            numbers = {path.hops: number for number, path in open_paths[key].items()}
            self._put(flows, [(numbers[path.hops], share) for path, share in best.paths[key]])
        if self._divided_load() >= worst * (1 - _SPREAD_GAIN):
            for planned in self._placement.by_slot.values():
                self._placement.move(planned, int(before[planned.slot]))

    def _divided_load(self) -> float:
        """The worst load of a link once every connection is divided among its QPs on their present paths."""
        paths = {assignment.flow: assignment.path for assignment in self.assignments()}
        return worst_load(self.flows, paths, self._conditions, shares(self.flows, paths, self._conditions))

    def _put(self, flows: Sequence[PlannedFlow], wanted: Sequence[tuple[int, float]]) -> None:
        """Put the QPs of a connection on paths by their shares; those that are on such a path already stay there."""
        room = dict.fromkeys((path for path, _ in wanted[: len(flows)]), 1)
        shares_of = dict(wanted)
        for _ in range(len(flows) - len(room) if room else 0):
            room[max(room, key=lambda path: shares_of[path] / room[path])] += 1
        moving = []
        for planned in flows:
            path = int(self._loads.path[planned.slot])
            if room.get(path, 0):
                room[path] -= 1
            else:
                moving.append(planned)
        free = [path for path, count in room.items() for _ in range(count)]
        for planned, path in zip(moving, free, strict=False):
            self._placement.move(planned, path)

    def divide(self, new: Collection[str] = ()) -> dict[str, float]:
        """Divide each connection's load among its QPs on their present paths; return the shares by flow id.

        The plan counts flows with these shares from now on (`shares.shares`). No flow moves. If only the flows `new`
        have come since the last division, connections without any of them keep their shares, unless the worst link
        would be lighter otherwise: whoever asked for them before has them already.
        """
        paths = {assignment.flow: assignment.path for assignment in self.assignments()}
        total_bps: dict[tuple[str, str, str], float] = {}
        for planned in self._planned.values():
            key = connection_key(planned.flow)
            total_bps[key] = total_bps.get(key, 0.0) + self._demand_bps(planned.flow)
        divided = shares(self.flows, paths, self._conditions)
        if new and (kept := self._divided_beside(new, paths, total_bps)):
            before, after = (worst_load(self.flows, paths, self._conditions, each) for each in (divided, kept))
            divided = kept if after <= before * (1 + _AS_GOOD) else divided
        for flow, share in divided.items():
            planned = self._planned[flow]
            planned.demand_bps = share * total_bps[connection_key(planned.flow)]
            self._loads.set_demand(planned.slot, planned.choice.common if planned.choice else (), planned.demand_bps)
        return divided

    def _divided_beside(
        self, new: Collection[str], paths: Mapping[str, Path], total_bps: Mapping[tuple[str, str, str], float]
    ) -> dict[str, float]:
        """Shares by which only the connections of these flows are divided; the others have those of the plan.

        None at all if the plan's cannot be told, because a connection demands nothing.
        """
        changed = {connection_key(self._planned[flow].flow) for flow in new}
        kept: dict[str, float] = {}
        background_bps = dict(self._conditions.background_bps)
        for flow, path in paths.items():
            planned = self._planned[flow]
            if (key := connection_key(planned.flow)) not in changed:
                if not total_bps[key]:
                    return {}
                kept[flow] = planned.demand_bps / total_bps[key]
                for hop in path.hops:
                    background_bps[hop] = background_bps.get(hop, 0.0) + planned.demand_bps
        conditions = msgspec.structs.replace(self._conditions, background_bps=background_bps)
        mine = [flow for flow in self.flows if connection_key(flow) in changed]
        return kept | shares(mine, paths, conditions, fill=True)

    def _register(self, flows: Iterable[Flow]) -> list[PlannedFlow]:
        planned = [PlannedFlow(flow, self._demand_bps(flow)) for flow in flows]
        self._planned |= {new.flow.id: new for new in planned}
        return planned

    def _place_again(self, flows: Sequence[PlannedFlow], gain: float | None) -> Change:
        """Place flows of the plan again; those that had a path and get another one count as moved."""
        before = {planned.flow.id: self._placement.assignment(planned) for planned in flows if planned.choice}
        for planned in flows:
            self._placement.remove(planned)
        change = self._place(flows, gain)
        placed = tuple(new for new in change.placed if new.flow not in before)
        moved = [new for new in change.placed if new.flow in before and new != before[new.flow]]
        return Change(placed, tuple(sorted([*change.moved, *moved], key=_flow_id)), change.stranded)

    def _place(self, flows: Sequence[PlannedFlow], gain: float | None) -> Change:
        """Place flows: first by moving only these, then by moving live ones if that gains enough."""
        flows = sorted(flows, key=lambda planned: planned.flow.id)
        self._placement.choose(flows)
        placed = [planned for planned in flows if planned.choice]
        loads, live = self._loads, len(self._placement.by_slot)
        before = loads.path.copy()
        slots = self._placement.add(placed)
        place_greedily(loads, slots)
        improve(loads, frozenset(slots.tolist()), _BUDGET if not live else _LIVE_BUDGET)
        if len(slots) and len(self._placement.by_slot) <= _FEW:
            restart(loads, slots, _RESTARTS, _RESTART_BUDGET)
        if gain is not None and live:
            improve(loads, None, _LIVE_BUDGET, gain)
        moved = np.flatnonzero((before != UNPLACED) & (before != loads.path[: len(before)])).tolist()
        return Change(
            tuple([self._placement.assignment(planned) for planned in placed]),
            tuple(sorted([self._placement.assignment(self._placement.by_slot[slot]) for slot in moved], key=_flow_id)),
            tuple([planned.flow.id for planned in flows if not planned.choice]),
        )

    def _demand_bps(self, flow: Flow) -> float:
        """The flow's demand times its job's share."""
        return flow.demand_bps * self._conditions.shares.get(flow.job, 1.0)

    def _known_links(self, hops: Iterable[str]) -> list[int]:
        """The links of those hops that a path of the atlas crosses."""
        return [self._links[hop] for hop in hops if hop in self._links]

    def _check(self, new: Sequence[Flow]) -> None:
        if len({flow.id for flow in new}) < len(new) or any(flow.id in self._planned for flow in new):
            raise UsageError("two flows have the same id; give every flow its own")
        if bad := [flow.id for flow in new if not 0 <= flow.demand_bps < float("inf")]:
            raise UsageError(f"flow {min(bad)} has no valid demand; give bit/s, zero or more")


def _flow_id(assignment: Assignment) -> str:
    return assignment.flow


def _choose_differently(flows: Sequence[PlannedFlow]) -> bool:
    """Whether these flows do not all choose among the same paths: some may cross planes, or have no open path."""
    return len({planned.choice.group if planned.choice else -1 for planned in flows}) > 1
