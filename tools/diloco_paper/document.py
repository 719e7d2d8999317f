"""The generated part of docs/diloco.md: Streaming DiLoCo's Table 4 as simulated and as published, and its figure 4."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

from c4bench.cost.utilisation import (
    BITS_PER_PARAMETER,
    FOUR_BITS,
    GRID_BPS,
    MODELS,
    UTILISATIONS,
    Cell,
    Granularity,
    Method,
    Model,
    Pattern,
    Settings,
    cells,
    curve,
    format_bandwidth,
)
from tools.diloco_paper.chart import utilisation_figure
from tools.diloco_paper.fit import ENOUGH, fit
from tools.diloco_paper.published import (
    LARGER_MODELS,
    SOURCE,
    grid_points,
    on_grid,
    published,
    steps_off,
    within_step,
)
from tools.documents.generated import frame, stylesheet

BLOCK = "utilisation"
FIGURE = "diloco-utilisation.svg"


def rewrite_utilisation(document: Path) -> None:
    """Replace the part between the markers in `document`, and the figure in `img` beside it.

    Raises UsageError if the document cannot be read or lacks a marker; nothing is written then.
    """
    text = frame(document, BLOCK).filled(*paragraphs())
    images = document.parent / "img"
    images.mkdir(exist_ok=True)
    (images / FIGURE).write_text(figure())
    document.write_text(text)


@cache
def figure() -> str:
    """The file of the figure."""
    return f"{utilisation_figure(MODELS, stylesheet())}\n"


@cache
def paragraphs() -> tuple[str, ...]:
    """The generated part, by paragraph."""
    table = cells()
    return (
        f"![Compute utilisation over bandwidth, three models, five methods](img/{FIGURE})",
        _table(table),
        f"Gbit/s for a compute utilisation; bold where it differs, here / {SOURCE}. {on_grid(table)} of {len(table)} "
        f"cells have the published bandwidth, {_of_two(table)} of them because either reading of 0.5 counts. "
        f"{within_step(table)} are at most one step of the grid (20.7 %) off. Those that differ:",
        "\n".join(_difference(cell) for cell in table if steps_off(cell)),
        _fits(),
        _flatness(),
        _larger(),
        "`make figures` rewrites this.",
    )


def _table(table: Sequence[Cell]) -> str:
    head = " | ".join(["model", "method", *(f"{share:.0%}" for share in UTILISATIONS)])
    lines = [f"| {head} |", "|---|---|" + "--:|" * len(UTILISATIONS)]
    for (model, method), row in groupby(table, key=lambda cell: (cell.model, cell.method)):
        lines.append(" | ".join([f"| {model}", str(method), *map(_both, row)]) + " |")
    return "\n".join(lines)


def _of_two(table: Sequence[Cell]) -> int:
    """How many cells have the lower one of two bandwidths that are printed alike."""
    return sum(len(points := grid_points(published(cell))) > 1 and cell.point == points[0] for cell in table)


def _both(cell: Cell) -> str:
    return f"**{format_bandwidth(cell)} / {published(cell)}**" if steps_off(cell) else published(cell)


def _difference(cell: Cell) -> str:
    model = next(model for model in MODELS if model.name == cell.model)
    there_bps = GRID_BPS[grid_points(published(cell))[-1]]
    (there,) = curve(model, cell.method, bandwidth_bps=[there_bps])
    side = "lower" if steps_off(cell) < 0 else "higher"
    steps = "one step" if abs(steps_off(cell)) == 1 else f"{abs(steps_off(cell))} steps"
    return (
        f"- {cell.model}, {cell.method}, {cell.utilisation:.0%}: {format_bandwidth(cell)} instead of {published(cell)} "
        f"Gbit/s, {steps} {side}. At the published bandwidth the simulated utilisation is {there:.2%}."
    )


def _fits() -> str:
    lines = [
        "| fragments | with overlap, what waits | bits per parameter | cells on the published bandwidth |",
        "|---|---|--:|--:|",
    ]
    for pattern in reversed(Pattern):
        for waits in reversed(Granularity):
            found = fit(Settings(pattern=pattern, waits=waits))
            lines.append(f"| {pattern} | the {waits} | {found.low:.2f} to {found.high:.2f} | {found.best} |")
    return "\n".join(lines)


def _flatness() -> str:
    found = fit()
    return (
        f"The table has been made with the first row's middle, {BITS_PER_PARAMETER} bits per parameter, "
        f"and {BITS_PER_PARAMETER * FOUR_BITS:.2f} with 4 bits. The fit is flat: {ENOUGH} cells or more are met from "
        f"{_range(found.flat)} bits, and all are within one step from {_range(found.near)} bits."
    )


def _larger() -> str:
    lines = [
        "| Gbit/s for 99 %: model | " + " | ".join(str(method) for method in Method) + " |",
        "|---|" + "--:|" * len(Method),
    ]
    lines += [
        f"| {_shape(model)} | " + " | ".join(map(format_bandwidth, _at_most_utilised(model))) + " |"
        for model in LARGER_MODELS
    ]
    return "\n".join(lines)


def _at_most_utilised(model: Model) -> Iterator[Cell]:
    return (cell for cell in cells([model]) if cell.utilisation == UTILISATIONS[-1])


def _shape(model: Model) -> str:
    return f"{model.name}: {model.layers} layers, {model.parameters / 1e9:.0f}B parameters, {model.step_s:g} s per step"


def _range(extent: tuple[float, float]) -> str:
    return f"{extent[0]:.2f} to {extent[1]:.2f}"
