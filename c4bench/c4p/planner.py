"""Where every flow goes, all jobs together, kept level while jobs come and go and links fail and return."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from c4bench.c4p import greedy, restarts, search
from c4bench.c4p.atlas import Atlas
from c4bench.c4p.board import UNPLACED, Board
from c4bench.c4p.conditions import Conditions
from c4bench.c4p.fans import Fans, Links
from c4bench.c4p.lanes import Lanes, Option
from c4bench.c4p.weights import connection, shares
from c4bench.errors import UsageError
from c4bench.model.fabric import Flow, Path

ECMP = Path(source_port=0, hops=())

# Counted in looks at a link's flows, not in seconds: the same input must give the same plan on a slower machine.
_BUDGET = 20_000
_LIVE_BUDGET = 150
_GAIN = 0.05

# With so few flows on the fabric, trying other orders costs little and one flow more or less on a link is much.
_FEW = 256
_RESTARTS = 16
_RESTART_BUDGET = 300


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """Where a flow goes: its path, and the ports at its ends (those chosen, where the flow names bonds)."""

    flow: str
    path: Path
    source: str
    destination: str


class Change(msgspec.Struct, frozen=True):
    """What a step of planning did, each in order of the ids.

    `placed` had no way before, `moved` are live flows that must now move, `stranded` are those of the step's flows
    that no way is open to: they are left to the fabric's own hashing until one is.
    """

    placed: tuple[Assignment, ...] = ()
    moved: tuple[Assignment, ...] = ()
    stranded: tuple[str, ...] = ()


class _Seat(msgspec.Struct, eq=False, gc=False):
    """A flow of the plan: what it chooses from, and its slot on the board; neither while it is stranded."""

    flow: Flow
    demand_bps: float
    option: Option | None = None
    slot: int = UNPLACED
    crossing: bool = False


class Planner:
    """The plan of one fabric: every step keeps the worst link's load least, then the next worst, moving little.

    A heuristic: `exact.least_worst_load` proves how near it comes. It depends on nothing but the steps taken: equal
    steps with equal arguments, flows in any order, give equal plans. Raises UsageError for conditions without sense.
    """

    def __init__(self, atlas: Atlas, conditions: Conditions | None = None) -> None:
        self._conditions = conditions or Conditions()
        self._conditions.check(atlas.hops)
        self._links = {hop: index for index, hop in enumerate(atlas.hops)}
        fans = Fans(len(atlas.hops))
        self._lanes = Lanes(atlas, fans, self._conditions.bonds)
        weights, background = self._conditions.weights(atlas.hops), self._conditions.background(atlas.hops)
        self._board = Board(fans, weights, background)
        self._seats: dict[str, _Seat] = {}
        self._by_slot: dict[int, _Seat] = {}

    @property
    def flows(self) -> tuple[Flow, ...]:
        """All flows of the plan, in order of their ids."""
        return tuple(self._seats[flow].flow for flow in sorted(self._seats))

    def assignments(self) -> tuple[Assignment, ...]:
        """Where every flow that has a way goes, in order of the ids."""
        seats = (self._seats[flow] for flow in sorted(self._seats))
        return tuple(self._assignment(seat) for seat in seats if seat.option)

    def loads(self) -> dict[str, float]:
        """Load by hop: bit/s, or a fraction where the conditions have capacities; infinite on links not to be used."""
        return dict(zip(self._links, self._board.load.tolist(), strict=False))

    def add(self, flows: Iterable[Flow], gain: float | None = _GAIN) -> Change:
        """Place further flows; live ones move only where that makes a link lighter by more than the fraction `gain`.

        With `gain` None no live flow moves. Raises UsageError for an id that is taken, and a demand below zero.
        """
        new = list(flows)
        self._check(new)
        seats = [_Seat(flow, self._demand(flow)) for flow in new]
        self._seats |= {seat.flow.id: seat for seat in seats}
        return self._settle(seats, gain)

    def adopt(self, live: Iterable[tuple[Flow, Assignment]]) -> None:
        """Take over flows as they run already; those on a path that is not known, or not to be used, are placed anew.

        Ask `assignments` where they go then. Raises UsageError as `add` does.
        """
        given = sorted(live, key=lambda one: one[0].id)
        self._check([flow for flow, _ in given])
        seats = [_Seat(flow, self._demand(flow)) for flow, _ in given]
        self._seats |= {seat.flow.id: seat for seat in seats}
        self._choose(seats)
        ways = [self._way(seat, where) for seat, (_, where) in zip(seats, given, strict=True)]
        known = [(seat, way) for seat, way in zip(seats, ways, strict=True) if way is not None]
        slots = self._seat([seat for seat, _ in known])
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
                self._unseat(seat)

    def close(self, hops: Iterable[str], gain: float | None = None) -> Change:
        """Use these links no more, such as failed or blamed ones: what was on them moves, by default nothing else."""
        self._board.close(self._known(hops))
        shut = frozenset(self._board.shut())
        hit = [seat for seat in self._by_slot.values() if not shut.isdisjoint(self._crossed(seat))]
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
            asked[connection(seat.flow)] = asked.get(connection(seat.flow), 0.0) + self._demand(seat.flow)
        for flow, share in divided.items():
            seat = self._seats[flow]
            seat.demand_bps = share * asked[connection(seat.flow)]
            self._board.ask(seat.slot, seat.option.common if seat.option else (), seat.demand_bps)
        return divided

    def _resettle(self, seats: Sequence[_Seat], gain: float | None) -> Change:
        """Place flows again that are in the plan already; those that had a way count as moved."""
        before = {seat.flow.id: self._assignment(seat) for seat in seats if seat.option}
        for seat in seats:
            self._unseat(seat)
        change = self._settle(seats, gain)
        placed = tuple(now for now in change.placed if now.flow not in before)
        moved = [now for now in change.placed if now.flow in before and now != before[now.flow]]
        return Change(placed, tuple(sorted([*change.moved, *moved], key=_flow_id)), change.stranded)

    def _settle(self, seats: Sequence[_Seat], gain: float | None) -> Change:
        """Place flows, first by moving them alone, then others where that pays."""
        seats = sorted(seats, key=lambda seat: seat.flow.id)
        self._choose(seats)
        placed = [seat for seat in seats if seat.option]
        board, live = self._board, len(self._by_slot)
        before = board.way.copy()
        slots = self._seat(placed)
        greedy.place(board, slots)
        search.improve(board, frozenset(slots.tolist()), _BUDGET if not live else _LIVE_BUDGET)
        if len(slots) and len(self._by_slot) <= _FEW:
            restarts.restart(board, slots, _RESTARTS, _RESTART_BUDGET)
        if gain is not None and live:
            search.improve(board, None, _LIVE_BUDGET, gain)
        moved = np.flatnonzero((before != UNPLACED) & (before != board.way[: len(before)])).tolist()
        return Change(
            tuple([self._assignment(seat) for seat in placed]),
            tuple(sorted([self._assignment(self._by_slot[slot]) for slot in moved], key=_flow_id)),
            tuple([seat.flow.id for seat in seats if not seat.option]),
        )

    def _choose(self, seats: Sequence[_Seat]) -> None:
        """What each flow may choose between: within its plane where a way is open, else crossing, else nothing."""
        for crossing in (False, True):
            left = [seat for seat in seats if not seat.option]
            if not left:
                return
            options = self._lanes.options([(seat.flow.source, seat.flow.destination) for seat in left], crossing)
            openings = self._board.openings()
            for seat, option in zip(left, options, strict=True):
                if openings.admit(option.fan, option.common):
                    seat.option, seat.crossing = option, crossing

    def _seat(self, seats: Sequence[_Seat]) -> Links:
        options = [seat.option for seat in seats if seat.option]
        demands = [seat.demand_bps for seat in seats]
        slots = self._board.seat([option.fan for option in options], demands, [option.common for option in options])
        for seat, slot in zip(seats, slots.tolist(), strict=True):
            seat.slot = slot
            self._by_slot[slot] = seat
        return slots

    def _way(self, seat: _Seat, where: Assignment) -> int | None:
        """The way that a live flow is on; None where that cannot be used."""
        if seat.option is None:
            return None
        way = self._lanes.way(seat.option, where.source, where.destination, where.path.hops)
        crossed = self._known(where.path.hops)
        return way if np.isfinite(self._board.load[crossed]).all() else None

    def _demand(self, flow: Flow) -> float:
        """The room that a flow is given, by its job's share."""
        return flow.demand_bps * self._conditions.shares.get(flow.job, 1.0)

    def _unseat(self, seat: _Seat) -> None:
        if seat.option:
            self._board.unseat(seat.slot, seat.option.common)
            del self._by_slot[seat.slot]
            seat.option, seat.slot, seat.crossing = None, UNPLACED, False

    def _assignment(self, seat: _Seat) -> Assignment:
        assert seat.option
        source, destination, path = self._lanes.path(seat.option, int(self._board.way[seat.slot]))
        return Assignment(seat.flow.id, path, source, destination)

    def _crossed(self, seat: _Seat) -> list[int]:
        return [*seat.option.common, *self._board.links(seat.slot)] if seat.option else []

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
