"""The flows of a plan: their path choices, their slots in the link load table, and the paths they were given."""

from collections.abc import Sequence

import msgspec
import numpy as np

from c4bench.c4p.conditions import IndexArray
from c4bench.c4p.placement.link_load_table import UNPLACED, LinkLoadTable
from c4bench.c4p.placement.path_choices import PathChoice, PathChoices
from c4bench.model.fabric import Flow, Path

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

    def crossed(self, planned: PlannedFlow) -> list[int]:
        """The links that a flow crosses; none if it is stranded."""
        return [*planned.choice.common, *self._loads.links(planned.slot)] if planned.choice else []
