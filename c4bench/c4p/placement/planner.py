"""Where every flow goes, all jobs together, kept level while jobs come and go and links fail and return."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.placement.ejection_chains import improve
from c4bench.c4p.placement.flow_placement import Assignment, FlowPlacement, PlacedFlow
from c4bench.c4p.placement.initial_placement import place, restart
from c4bench.c4p.placement.link_load_table import UNPLACED, LinkLoadTable
from c4bench.c4p.placement.path_choices import EcmpGroups, PathChoices
from c4bench.c4p.weights.shares import shares
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path
from c4bench.model.qp_address import connection_key

ECMP = Path(source_port=0, hops=())

# Counted in looks at a link's flows, not in seconds: the same input must give the same plan on a slower machine.
_BUDGET = 20_000
_LIVE_BUDGET = 150
_GAIN = 0.05

# With so few flows on the fabric, trying other orders costs little and one flow more or less on a link is much.
_FEW = 256
_RESTARTS = 16
_RESTART_BUDGET = 300


class Change(msgspec.Struct, frozen=True):
    """What a step of planning did, each in order of the ids.

    `placed` had no way before, `moved` are live flows that must now move, `stranded` are those of the step's flows
    that no way is open to: they are left to the fabric's own hashing until one is.
    """

    placed: tuple[Assignment, ...] = ()
    moved: tuple[Assignment, ...] = ()
    stranded: tuple[str, ...] = ()


class Planner:
    """The plan of one fabric: every step keeps the worst link's load least, then the next worst, moving little.

    A heuristic: `exact.least_worst_load` proves how near it comes. It depends on nothing but the steps taken: equal
    steps with equal arguments, flows in any order, give equal plans. Raises UsageError for conditions without sense.
    """

    def __init__(self, atlas: Atlas, conditions: Conditions | None = None) -> None:
        self._conditions = conditions or Conditions()
        self._conditions.check(atlas.hops)
        self._links = {hop: index for index, hop in enumerate(atlas.hops)}
        fans = EcmpGroups(len(atlas.hops))
        weights, background = self._conditions.weights(atlas.hops), self._conditions.background(atlas.hops)
        lanes = PathChoices(atlas, fans, self._conditions.bonds)
        self._board = LinkLoadTable(fans, weights, background)
        self._seating = FlowPlacement(lanes, self._board)
        self._seats: dict[str, PlacedFlow] = {}

    @property
    def flows(self) -> tuple[Flow, ...]:
        """All flows of the plan, in order of their ids."""
        return tuple(self._seats[flow].flow for flow in sorted(self._seats))

    def assignments(self) -> tuple[Assignment, ...]:
        """Where every flow that has a way goes, in order of the ids."""
        seats = (self._seats[flow] for flow in sorted(self._seats))
        return tuple(self._seating.assignment(seat) for seat in seats if seat.option)

    def loads(self) -> dict[str, float]:
        """Load by hop: bit/s, or a fraction where the conditions have capacities; infinite on links not to be used."""
        return dict(zip(self._links, self._board.load.tolist(), strict=False))

    def add(self, flows: Iterable[Flow], gain: float | None = _GAIN) -> Change:
        """Place further flows; live ones move only where that makes a link lighter by more than the fraction `gain`.

        With `gain` None no live flow moves. Raises UsageError for an id that is taken, and a demand below zero.
        """
        new = list(flows)
        self._check(new)
        seats = [PlacedFlow(flow, self._demand(flow)) for flow in new]
        self._seats |= {seat.flow.id: seat for seat in seats}
        return self._settle(seats, gain)

    def adopt(self, live: Iterable[tuple[Flow, Assignment]]) -> None:
        """Take over flows as they run already; those on a path that is not known, or not to be used, are placed anew.

        Ask `assignments` where they go then. Raises UsageError as `add` does.
        """
        given = sorted(live, key=lambda one: one[0].id)
        self._check([flow for flow, _ in given])
        seats = [PlacedFlow(flow, self._demand(flow)) for flow, _ in given]
        self._seats |= {seat.flow.id: seat for seat in seats}
        self._seating.choose(seats)
        ways = [
            self._seating.way(seat, where, self._known(where.path.hops))
            for seat, (_, where) in zip(seats, given, strict=True)
        ]
        known = [(seat, way) for seat, way in zip(seats, ways, strict=True) if way is not None]
        slots = self._seating.sit([seat for seat, _ in known])
        self._board.put_all(slots, np.array([way for _, way in known], dtype=np.intp))
        homeless = [seat for seat, way in zip(seats, ways, strict=True) if way is None]
        for seat in homeless:
            seat.option, seat.crossing = None, False
        self._settle(homeless, None)

    def grant(self, job: str, share: float) -> None:
        """Give the flows that this job adds from now on the room of `share` times their demand.

        Raises UsageError for a share without sense.
        """
        now = msgspec.structs.replace(self._conditions, shares=dict(self._conditions.shares) | {job: share})
        now.check(tuple(self._links))
        self._conditions = now

    def remove(self, flows: Iterable[str]) -> None:
        """Forget flows that have ended; the others stay where they are until `rebalance`."""
        for flow in flows:
            if (seat := self._seats.pop(flow, None)) is not None:
                self._seating.rise(seat)

    def close(self, hops: Iterable[str], gain: float | None = None) -> Change:
        """Use these links no more, such as failed or blamed ones: what was on them moves, by default nothing else."""
        self._board.close(self._known(hops))
        shut = frozenset(self._board.shut())
        hit = [seat for seat in self._seating.by_slot.values() if not shut.isdisjoint(self._seating.crossed(seat))]
        return self._resettle(hit, gain)

    def reopen(self, hops: Iterable[str], gain: float | None = _GAIN) -> Change:
        """Use these links again: for what was stranded or had to cross planes, then to relieve others by `gain`."""
        self._board.reopen(self._known(hops))
        return self._resettle([seat for seat in self._seats.values() if not seat.option or seat.crossing], gain)

    def observe(self, background_bps: Mapping[str, float]) -> None:
        """Reckon with this traffic of others from now on, bit/s by hop; `rebalance` then moves what gains by it.

        Raises UsageError for a rate without sense.
        """
        now = msgspec.structs.replace(self._conditions, background_bps=background_bps)
        hops = tuple(self._links)
        now.check(hops)
        self._board.lay(now.background(hops) - self._conditions.background(hops))
        self._conditions = now

    def rebalance(self, gain: float = _GAIN) -> Change:
        """Move live flows where that makes a link lighter by more than the fraction `gain`."""
        return self._settle((), gain)

    def divide(self) -> dict[str, float]:
        """Share each connection's load anew among its QPs where they are; the shares by flow id (`weights.shares`).

        The plan reckons with these shares from now on. No flow moves.
        """
        paths = {assignment.flow: assignment.path for assignment in self.assignments()}
        divided = shares(self.flows, paths, self._conditions)
        asked: dict[tuple[str, str, str], float] = {}
        for seat in self._seats.values():
            asked[connection_key(seat.flow)] = asked.get(connection_key(seat.flow), 0.0) + self._demand(seat.flow)
        for flow, share in divided.items():
            seat = self._seats[flow]
            seat.demand_bps = share * asked[connection_key(seat.flow)]
            self._board.ask(seat.slot, seat.option.common if seat.option else (), seat.demand_bps)
        return divided

    def _resettle(self, seats: Sequence[PlacedFlow], gain: float | None) -> Change:
        """Place flows again that are in the plan already; those that had a way count as moved."""
        before = {seat.flow.id: self._seating.assignment(seat) for seat in seats if seat.option}
        for seat in seats:
            self._seating.rise(seat)
        change = self._settle(seats, gain)
        placed = tuple(now for now in change.placed if now.flow not in before)
        moved = [now for now in change.placed if now.flow in before and now != before[now.flow]]
        return Change(placed, tuple(sorted([*change.moved, *moved], key=_flow_id)), change.stranded)

    def _settle(self, seats: Sequence[PlacedFlow], gain: float | None) -> Change:
        """Place flows, first by moving them alone, then others where that pays."""
        seats = sorted(seats, key=lambda seat: seat.flow.id)
        self._seating.choose(seats)
        placed = [seat for seat in seats if seat.option]
        board, live = self._board, len(self._seating.by_slot)
        before = board.way.copy()
        slots = self._seating.sit(placed)
        place(board, slots)
        improve(board, frozenset(slots.tolist()), _BUDGET if not live else _LIVE_BUDGET)
        if len(slots) and len(self._seating.by_slot) <= _FEW:
            restart(board, slots, _RESTARTS, _RESTART_BUDGET)
        if gain is not None and live:
            improve(board, None, _LIVE_BUDGET, gain)
        moved = np.flatnonzero((before != UNPLACED) & (before != board.way[: len(before)])).tolist()
        return Change(
            tuple([self._seating.assignment(seat) for seat in placed]),
            tuple(sorted([self._seating.assignment(self._seating.by_slot[slot]) for slot in moved], key=_flow_id)),
            tuple([seat.flow.id for seat in seats if not seat.option]),
        )

    def _demand(self, flow: Flow) -> float:
        """The room that a flow is given, by its job's share."""
        return flow.demand_bps * self._conditions.shares.get(flow.job, 1.0)

    def _known(self, hops: Iterable[str]) -> list[int]:
        """The links of these hops; of those that no path of the atlas crosses there is nothing to plan."""
        return [self._links[hop] for hop in hops if hop in self._links]

    def _check(self, new: Sequence[Flow]) -> None:
        if len({flow.id for flow in new}) < len(new) or any(flow.id in self._seats for flow in new):
            raise UsageError("two flows have the same id; give every flow its own")
        if bad := [flow.id for flow in new if not 0 <= flow.demand_bps < float("inf")]:
            raise UsageError(f"flow {min(bad)} has no sensible demand; give bit/s, zero or more")


def _flow_id(assignment: Assignment) -> str:
    return assignment.flow
