"""Compute utilisation over the bandwidth between sites: figure 4 of Streaming DiLoCo (arXiv 2501.18512)."""

from collections.abc import Sequence

from markupsafe import Markup

from c4bench.cost.utilisation import GRID_BPS, Method, Model, cells, curve
from c4bench.report.charts.curves import Axis, Line, key, plot
from c4bench.report.svg import element, standalone

_WIDTH, _HEIGHT, _KEY, _GAP = 310.0, 250.0, 28.0, 8.0
_GOAL = 0.95
_ACROSS = Axis("Gbit/s between sites", ((0.1, "0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1000")), True)
_UP = Axis("", ((0, "0 %"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1, "100 %")))


def utilisation_figure(models: Sequence[Model], css: str) -> Markup:
    """A plot for each model, side by side, with a line for each method; a file of its own."""
    plots = [_placed(_plot(model), index * (_WIDTH + _GAP), _KEY) for index, model in enumerate(models)]
    width = len(models) * (_WIDTH + _GAP) - _GAP
    return standalone(
        "Compute utilisation over bandwidth",
        " ".join(_words(model) for model in models),
        width,
        _KEY + _HEIGHT,
        css,
        _placed(key([str(method) for method in Method]), 42, 4),
        *plots,
    )


def _plot(model: Model) -> Markup:
    gbps = [bandwidth_bps / 1e9 for bandwidth_bps in GRID_BPS]
    lines = [
        Line(str(method), rank, list(zip(gbps, curve(model, method), strict=True)))
        for rank, method in enumerate(Method, 1)
    ]
    title = f"{model.name}: {model.layers} layers, {model.step_s:g} s per step"
    return plot(title, lines, _ACROSS, _UP, _GOAL, _WIDTH, _HEIGHT)


def _words(model: Model) -> str:
    at_goal = [cell for cell in cells([model]) if cell.utilisation == _GOAL]
    needed = ", ".join(f"{cell.method} {cell.bandwidth_bps / 1e9:.1f}" for cell in at_goal)
    return f"{model.name}, Gbit/s for {_GOAL:.0%}: {needed}."


def _placed(drawn: Markup, x: float, y: float) -> Markup:
    return element("g", drawn, transform=f"translate({x:.0f} {y:.0f})")
