"""Training at several sites: what is learnt by tokens, and what links carry for it."""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from c4bench.record.artefacts import LinkBytes, LossCurves, StepBytes
from c4bench.report.charts.lines import Axis, Line, key, plot
from c4bench.report.svg import drawing, element

_WIDTH, _HEIGHT, _KEY = 480.0, 260.0, 28.0
_TICKS = 5
_ROW, _LABEL, _VALUE = 22.0, 190.0, 70.0
_DECADES = 10.0  # bars are by logarithm, from a tenth of the least value above 0 on
_SCALE = (1e9, "G"), (1e6, "M"), (1e3, "k")


def loss_plot(shown: LossCurves, draw: Callable[..., Markup] = drawing) -> Markup:
    """Losses over tokens, a line for each method; the axes end at round numbers beyond the values."""
    points = [point for curve in shown.curves for point in curve.points]
    tokens, losses = zip(*points, strict=True)
    across = Axis("tokens", _ticks(0.0, max(tokens)))
    up = Axis("", _ticks(min(losses), max(losses)))
    lines = [Line(curve.method, rank, curve.points) for rank, curve in enumerate(shown.curves, 1)]
    last = ", ".join(f"{curve.method} {curve.points[-1][1]:.3f}" for curve in shown.curves)
    return draw(
        "Training loss over tokens",
        f"Last loss (nats): {last}.",
        _WIDTH,
        _KEY + _HEIGHT,
        element("g", key([curve.method for curve in shown.curves]), transform="translate(42 4)"),
        element(
            "g",
            plot("training loss, nats", lines, across, up, None, _WIDTH, _HEIGHT),
            transform=f"translate(0 {_KEY:.0f})",
        ),
    )


def byte_bars(shown: LinkBytes, draw: Callable[..., Markup] = drawing) -> Markup:
    """A bar for each link and method, its length by logarithm, with the bytes of a step beside it."""
    values = [load.bytes_per_step for load in shown.loads if load.bytes_per_step > 0] or [1.0]
    low, high = math.log(min(values) / _DECADES), math.log(max(values))
    room = _WIDTH - _LABEL - _VALUE
    drawn: list[Markup] = []
    for row, load in enumerate(shown.loads):
        length = room * (math.log(load.bytes_per_step) - low) / (high - low) if load.bytes_per_step > 0 else 0.0
        drawn += _bar(load, row * _ROW, length)
    words = "; ".join(f"{load.link}, {load.method}: {_short(load.bytes_per_step)}B" for load in shown.loads)
    return draw("Bytes of a step by link", f"{words}.", _WIDTH, _ROW * len(shown.loads), *drawn)


def _bar(load: StepBytes, y: float, length: float) -> Sequence[Markup]:
    text, value = f"{load.link}, {load.method}", f"{_short(load.bytes_per_step)}B"
    return (
        element("text", text, x=_LABEL - 8, y=y + 15, text_anchor="end", class_="note"),
        element("rect", x=_LABEL, y=y + 4, width=length, height=14, rx=2, class_="value"),
        element("text", value, x=_LABEL + length + 6, y=y + 15, class_="note"),
    )


def _ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Round numbers, evenly apart, from below `low` to above `high`."""
    rough = (high - low) / _TICKS or 1.0
    decade = 10.0 ** math.floor(math.log10(rough))
    apart = next(step * decade for step in (1, 2, 5, 10) if step * decade >= rough)
    first, last = math.floor(low / apart), math.ceil(high / apart)
    return tuple((number * apart, _short(number * apart)) for number in range(first, max(last, first + 1) + 1))


def _short(value: float) -> str:
    """Three digits with a unit's prefix: 12345 is `12.3 k`."""
    for scale, prefix in _SCALE:
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} " if value >= 1 else f"{value:.3g}"
