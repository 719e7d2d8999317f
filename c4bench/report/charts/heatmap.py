"""The delay matrix as a heat map: which transfers take longer than usual, and by how much."""

import math
from collections.abc import Sequence
from statistics import median

from markupsafe import Markup

from c4bench.record import RunDirectory
from c4bench.record.artefacts import DelayMatrices, DelayMatrix
from c4bench.report.svg import drawing, element
from c4bench.units import format_rate

_HEAT_NICS = 48
_SIDE = 330.0
_LEFT, _TOP = 44.0, 40.0
_STEPS = (1.15, 1.5, 2.0, 3.0, 5.0)
_LABELS = 12


def usual(matrices: Sequence[DelayMatrix]) -> float:
    """The median cell of the first matrix that has any, in seconds per byte; 1.0 without one."""
    for matrix in matrices:
        if cells := [cell for row in matrix.cells_s_per_byte for cell in row if cell is not None]:
            return median(cells) or 1.0
    return 1.0


def heatmap(matrix: DelayMatrix, reference_s_per_byte: float) -> Markup:
    """Cells coloured by their ratio to the reference; a row is a sender, a column a receiver, a cell a path."""
    size = _SIDE / max(len(matrix.nics), 1)
    ratios = {
        (row, column): cell / reference_s_per_byte
        for row, cells in enumerate(matrix.cells_s_per_byte)
        for column, cell in enumerate(cells)
        if cell is not None
    }
    hot = [_hot(matrix, index, ratio, size) for index, ratio in ratios.items() if ratio > _STEPS[0]]
    usual_cells = _usual([index for index, ratio in ratios.items() if ratio <= _STEPS[0]], size)
    worst = f"the slowest takes {max(ratios.values()):.1f} times the usual" if ratios else "no traffic"
    title = f"Delay matrix, {matrix.label}"
    description = f"{len(matrix.nics)} senders by {len(matrix.nics)} receivers; {worst}."
    return drawing(
        title, description, _LEFT + _SIDE + 2, _TOP + _SIDE + 2, *_labels(matrix.nics, size), usual_cells, *hot
    )


def _box(index: tuple[int, int], size: float) -> tuple[float, float, float]:
    """Left, top and side of a cell, without the stroke of 1.5 units around it that rounds it."""
    gap = min(1.5, size * 0.1)
    row, column = index
    return _LEFT + column * size + gap + 1.5, _TOP + row * size + gap + 1.5, size - 2 * gap - 3


def _usual(indexes: Sequence[tuple[int, int]], size: float) -> Markup:
    # One SVG path for all: they are most of the matrix, and as single elements would be most of the page.
    boxes = (_box(index, size) for index in indexes)
    squares = (f"M{x:.1f} {y:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z" for x, y, side in boxes)
    return element("path", d="".join(squares), class_="usual")


def _hot(matrix: DelayMatrix, index: tuple[int, int], ratio: float, size: float) -> Markup:
    level = sum(ratio > bound for bound in _STEPS)
    x, y, side = _box(index, size)
    row, column = index
    cell = matrix.cells_s_per_byte[row][column] or math.inf
    tip = f"{matrix.nics[row]} to {matrix.nics[column]}: {ratio:.2f} times the usual, {format_rate(8 / cell)}"
    box = element("rect", x=x - 1.5, y=y - 1.5, width=side + 3, height=side + 3, rx=1.5, class_=f"h{level}")
    parts = [element("title", tip), box]
    if size >= 24:
        text = f"{ratio:.1f}\N{MULTIPLICATION SIGN}"
        parts.append(
            element("text", text, x=x + side / 2, y=y + side / 2 + 4, text_anchor="middle", class_=f"on{level}")
        )
    return element("g", *parts)


def _labels(nics: Sequence[str], size: float) -> list[Markup]:
    every = -(-len(nics) // _LABELS)
    shown = [(index, nic) for index, nic in enumerate(nics) if index % every == 0]
    rows = [
        element("text", nic, x=_LEFT - 6, y=_TOP + (index + 0.5) * size + 3, text_anchor="end") for index, nic in shown
    ]
    columns = [_slanted(nic, _LEFT + (index + 0.5) * size) for index, nic in shown]
    return rows + columns


def _slanted(label: str, x: float) -> Markup:
    return element("text", label, transform=f"translate({x:.1f} {_TOP - 7:.0f}) rotate(-45)")


def matrices(run: RunDirectory) -> list[tuple[str, list[tuple[str, Markup]]]]:
    """Heat maps of each scenario, all with one reference; those too large to read are left out."""
    groups = []
    for name, saved in run.load_all("delay_matrix", DelayMatrices).items():
        reference = usual(saved.matrices)
        small = [matrix for matrix in saved.matrices if len(matrix.nics) <= _HEAT_NICS]
        if small:
            groups.append((name, [(matrix.label, heatmap(matrix, reference)) for matrix in small]))
    return groups
