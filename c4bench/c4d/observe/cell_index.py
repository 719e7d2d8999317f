"""Cells of the delay matrix by number, and figures of many cells at once."""

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from functools import cached_property

import numpy as np

from c4bench.attribution.weigh import Cell
from c4bench.c4d.observe.columns import Bools, Floats, Index, Ints


class CellIndex:
    """Cells of the delay matrix by number; of one that is forgotten another may have the number later."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []  # () for one that is forgotten
        self.nics: list[str] = []
        self.nic_numbers = Index()  # of these
        self._rows = Index()
        self._free: list[int] = []
        self._ends: Ints = np.empty((2, 0), np.int64)

    @property
    def ends(self) -> Ints:
        """The numbers of the source and destination NICs of each cell, shape (2, cells)."""
        fresh = self.cells[self._ends.shape[1] :]
        if fresh:
            ends = [[self._nic(cell[end]) for cell in fresh] for end in (0, 1)]
            self._ends = np.concatenate([self._ends, np.array(ends, np.int64)], axis=1)
        return self._ends

    def _nic(self, name: str) -> int:
        if name not in self.nic_numbers:
            self.nic_numbers[name] = len(self.nics)
            self.nics.append(name)
        return self.nic_numbers[name]

    def __len__(self) -> int:
        return len(self._rows)

    def known(self) -> Bools:
        """Which numbers stand for cells."""
        known = np.ones(len(self.cells), np.bool_)
        known[self._free] = False
        return known

    def forget(self, rows: Ints) -> set[Cell]:
        """Forget these cells; return their names."""
        _, numbers = self.ends, rows.tolist()
        names = {self.cells[row] for row in numbers}
        for row in numbers:
            del self._rows[self.cells[row]]
            self.cells[row] = ()
        self._free += numbers
        return names

    def sides(self, rows: Ints) -> Bools:
        """Whether any of these cells is from each NIC, and whether any is to it; shape (2, NICs)."""
        ends = self.ends[:, rows]
        return np.stack([np.bincount(side, minlength=len(self.nics)) > 0 for side in ends])

    def row(self, cell: Cell) -> int:
        """The number of a cell, which may be new."""
        if cell not in self._rows and self._free:
            row = self._rows[cell] = self._free.pop()
            self.cells[row] = cell
            self._ends[:, row] = self._nic(cell[0]), self._nic(cell[1])
        elif cell not in self._rows:
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

    def items(self) -> ItemsView[Cell, float]:
        """As of a dict; what `Mapping` inherits looks up each cell."""
        return self._by_cell.items()

    def values(self) -> ValuesView[float]:
        """The same."""
        return self._by_cell.values()

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
