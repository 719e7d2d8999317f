"""Rows, columns and links of the delay matrix as wholes: their cells meet in one queue."""

from collections.abc import Mapping
from typing import NamedTuple

from c4bench.c4d.localise import Cell, Links
from c4bench.model.diagnosis import Component

_MANY = 4


class MatrixSlice(NamedTuple):
    """A row, a column or the cells of a link; whether they are many."""

    component: Component
    many: bool


def slice_departures(departures: Mapping[Cell, float], links: Links) -> dict[MatrixSlice, float]:
    """How far rows, columns and links with several cells depart as a whole: all but a quarter of their cells."""
    found: dict[Component, list[float]] = {}
    for cell, departure in departures.items():
        for side in (Component("nic", cell[0], "tx"), Component("nic", cell[1], "rx")):
            found.setdefault(side, []).append(departure)
        for hop in links.get(cell, ()):
            found.setdefault(Component("link", hop), []).append(departure)
    return {
        MatrixSlice(side, len(values) >= _MANY): sorted(values)[len(values) // 4]
        for side, values in found.items()
        if len(values) > 1
    }
