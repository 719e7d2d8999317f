"""Training at several sites: what is learnt by tokens, and what links carry for it."""

import math
from collections.abc import Callable, Iterator, Sequence

from markupsafe import Markup

from c4bench.record.artefacts import LinkBytes, LossCurves, StepBytes
from c4bench.report.charts.lines import Axis, Line, key, plot
from c4bench.report.svg import drawing, element

_WIDTH, _HEIGHT, _KEY = 480.0, 260.0, 28.0
_TICKS = 5
_ROW, _LABEL, _VALUE, _INDENT = 22.0, 150.0, 70.0, 14.0
_PREFIXES = (1e9, "G"), (1e6, "M"), (1e3, "k")


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


def byte_dots(shown: LinkBytes, draw: Callable[..., Markup] = drawing) -> Markup:
    """A dot for each link and method over a logarithmic axis, with the bytes of a step beside it."""
    axis = Axis("bytes of a step, both directions", _decades([load.bytes_per_step for load in shown.loads]), True)
    rows: list[str | StepBytes] = []
    for link in dict.fromkeys(load.link for load in shown.loads):
        rows += [link, *(load for load in shown.loads if load.link == link)]
    base = _ROW * len(rows)
    drawn = [*_scale(axis, base)]
    for number, row in enumerate(rows):
        middle = (number + 0.5) * _ROW
        drawn += [_text(row, 0, middle, class_="title")] if isinstance(row, str) else _dot(row, axis, middle)
    words = "; ".join(f"{load.link}, {load.method}: {_short(load.bytes_per_step)}B" for load in shown.loads)
    return draw("Bytes of a step by link", f"{words}.", _WIDTH, base + 36, element("g", *drawn, class_="plot"))


def _scale(axis: Axis, base: float) -> Iterator[Markup]:
    for value, text in axis.ticks:
        x = _across(axis, value)
        yield element("line", x1=x, x2=x, y1=0, y2=base, class_="rule")
        yield _text(text, x, base + 10, text_anchor="middle")
    yield _text(axis.label, (_LABEL + _WIDTH - _VALUE) / 2, base + 26, text_anchor="middle")


def _dot(load: StepBytes, axis: Axis, y: float) -> Iterator[Markup]:
    x = _across(axis, load.bytes_per_step)
    yield _text(load.method, _INDENT, y)
    yield element("circle", cx=x, cy=y, r=4.5, class_="value")
    yield _text(f"{_short(load.bytes_per_step)}B", x + 9, y)


def _across(axis: Axis, value: float) -> float:
    return _LABEL + axis.share(max(value, axis.ticks[0][0])) * (_WIDTH - _LABEL - _VALUE)


def _text(text: str, x: float, middle: float, **attributes: str) -> Markup:
    return element("text", text, x=x, y=middle + 4, **attributes)


def _decades(values: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Powers of ten from below the least value above 0 to above the largest."""
    above = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
    return tuple((10.0**power, f"{_short(10.0**power)}B") for power in range(first, max(last, first + 1) + 1))


def _ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Round numbers, evenly apart, from below `low` to above `high`."""
    rough = (high - low) / _TICKS or 1.0
    decade = 10.0 ** math.floor(math.log10(rough))
    apart = next(step * decade for step in (1, 2, 5, 10) if step * decade >= rough)
    first, last = math.floor(low / apart), math.ceil(high / apart)
    return tuple((number * apart, _short(number * apart)) for number in range(first, max(last, first + 1) + 1))


def _short(value: float) -> str:
    """Three digits with a unit's prefix: 12345 is `12.3 k`."""
    for scale, prefix in _PREFIXES:
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} " if value >= 1 else f"{value:.3g}"
