"""Cells of the delay matrix by number, and figures of many cells at once."""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

import numpy as np

from c4bench.attribution.localise import Cell
from c4bench.c4d.columns import Bools, Floats, Index, Ints


class CellIndex:
    """Cells of the delay matrix by number, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.nics: list[str] = []
        self.nic_numbers = Index()  # of these
        self._rows = Index()
        self._ends: Ints = np.empty((2, 0), np.int64)

    @property
    def ends(self) -> Ints:
        """The numbers of the source and destination NICs of each cell, shape (2, cells)."""
        fresh = self.cells[self._ends.shape[1] :]
        if fresh:
            ends = [[self.nic_numbers.setdefault(cell[end], len(self.nic_numbers)) for cell in fresh] for end in (0, 1)]
            self._ends = np.concatenate([self._ends, np.array(ends, np.int64)], axis=1)
            self.nics += list(self.nic_numbers)[len(self.nics) :]
        return self._ends

    def sides(self, rows: Ints) -> Bools:
        """Whether any of these cells is from each NIC, and whether any is to it; shape (2, NICs)."""
        ends = self.ends[:, rows]
        return np.stack([np.bincount(side, minlength=len(self.nics)) > 0 for side in ends])

    def row(self, cell: Cell) -> int:
        """The number of a cell, which may be new."""
        if cell not in self._rows:
            self._rows[cell] = len(self.cells)
            self.cells.append(cell)
        return self._rows[cell]

    def rows(self, cells: Collection[Cell]) -> Ints:
        """The numbers of those of the cells that are known."""
        rows = self._rows.rows(cells, len(cells))
        return rows[rows >= 0]

    def values_of(self, cells: Mapping[Cell, float]) -> "CellValues":
        """Figures given by cell."""
        rows = np.fromiter(map(self.row, cells), np.int64, len(cells))
        return CellValues(self, rows, np.fromiter(cells.values(), np.float64, len(cells)))


class CellValues(Mapping[Cell, float]):
    """One figure for each of some cells: `figures`, by `rows`, the cells' numbers, each once."""

    def __init__(self, index: CellIndex, rows: Ints, values: Floats) -> None:
        self.index = index
        self.rows = rows
        self.figures = values

    def __getitem__(self, cell: Cell) -> float:
        return self._by_cell[cell]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._by_cell)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _by_cell(self) -> dict[Cell, float]:
        cells = self.index.cells
        return dict(zip((cells[row] for row in self.rows.tolist()), self.figures.tolist(), strict=True))

    def pick(self, which: Bools) -> "CellValues":
        """Some of them."""
        return CellValues(self.index, self.rows[which], self.figures[which])

    def among(self, cells: Collection[Cell]) -> Bools:
        """Which of them are figures of these cells."""
        return np.isin(self.rows, self.index.rows(cells)) if cells else np.zeros(len(self.rows), np.bool_)
