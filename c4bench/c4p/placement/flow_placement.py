"""Flows and the board: what each may choose between, which slot it has, and what its way means in words."""

from collections.abc import Sequence

import msgspec
import numpy as np

from c4bench.c4p.arrays import IndexArray
from c4bench.c4p.placement.link_load_table import UNPLACED, LinkLoadTable
from c4bench.c4p.placement.path_choices import PathChoice, PathChoices
from c4bench.model.fabric import Flow, Path


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """Where a flow goes: its path, and the ports at its ends (those chosen, where the flow names bonds)."""

    flow: str
    path: Path
    source: str
    destination: str


class PlacedFlow(msgspec.Struct, eq=False, gc=False):
    """A flow of the plan: what it chooses from, and its slot on the board; neither while it is stranded."""

    flow: Flow
    demand_bps: float
    option: PathChoice | None = None
    slot: int = UNPLACED
    crossing: bool = False


class FlowPlacement:
    """Seats on a board; `by_slot` are those that have a slot."""

    def __init__(self, lanes: PathChoices, board: LinkLoadTable) -> None:
        self.by_slot: dict[int, PlacedFlow] = {}
        self._lanes, self._board = lanes, board

    def choose(self, seats: Sequence[PlacedFlow]) -> None:
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

    def sit(self, seats: Sequence[PlacedFlow]) -> IndexArray:
        """Slots for flows that have something to choose from; they are not placed yet."""
        options = [seat.option for seat in seats if seat.option]
        demands = [seat.demand_bps for seat in seats]
        slots = self._board.seat([option.fan for option in options], demands, [option.common for option in options])
        for seat, slot in zip(seats, slots.tolist(), strict=True):
            seat.slot = slot
            self.by_slot[slot] = seat
        return slots

    def rise(self, seat: PlacedFlow) -> None:
        """Give up the slot; the flow is stranded until it chooses again."""
        if seat.option:
            self._board.unseat(seat.slot, seat.option.common)
            del self.by_slot[seat.slot]
            seat.option, seat.slot, seat.crossing = None, UNPLACED, False

    def way(self, seat: PlacedFlow, where: Assignment, crossed: Sequence[int]) -> int | None:
        """The way that a live flow is on, over the links `crossed`; None where that cannot be used."""
        if seat.option is None:
            return None
        way = self._lanes.way(seat.option, where.source, where.destination, where.path.hops)
        return way if np.isfinite(self._board.load[list(crossed)]).all() else None

    def assignment(self, seat: PlacedFlow) -> Assignment:
        """Where a placed flow goes."""
        assert seat.option
        source, destination, path = self._lanes.path(seat.option, int(self._board.way[seat.slot]))
        return Assignment(seat.flow.id, path, source, destination)

    def crossed(self, seat: PlacedFlow) -> list[int]:
        """The links that a flow is on."""
        return [*seat.option.common, *self._board.links(seat.slot)] if seat.option else []
