"""Curves and dots over axes: losses by tokens, bytes by link, cost by size, and lines of any measure."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from c4bench.record import RunDirectory
from c4bench.record.artefacts import Growth, LinkBytes, LossCurves, StepBytes
from c4bench.report.svg import drawing, element

_LEFT, _TOP, _BELOW = 42.0, 22.0, 38.0
_SAMPLE, _LETTER = 30.0, 6.4
_WIDTH, _HEIGHT, _KEY = 480.0, 260.0, 28.0
_TICKS = 5
_ROW, _LABEL, _VALUE, _INDENT = 22.0, 150.0, 70.0, 14.0
_PREFIXES = (1e9, "G"), (1e6, "M"), (1e3, "k")


class Axis(NamedTuple):
    """An axis from its first to its last tick; a tick is a value and its text. Values on a logarithmic one are > 0."""

    label: str
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """The position of a value: 0 at the first tick, 1 at the last, and never beyond."""
        low, high, at = (self._scaled(each) for each in (self.ticks[0][0], self.ticks[-1][0], value))
        return min(max((at - low) / (high - low), 0.0), 1.0)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


class Line(NamedTuple):
    """A line's name and its points (x, y). Lines of one rank have one style, from 1 to 5."""

    name: str
    rank: int
    points: Sequence[tuple[float, float]]


def plot(
    title: str, lines: Sequence[Line], across: Axis, up: Axis, goal: float | None, width: float, height: float
) -> Markup:
    """A plot at the origin, `width` by `height` with its texts; `goal`, if any, is marked by a level line."""
    room, tall = width - _LEFT - 14, height - _TOP - _BELOW
    base = _TOP + tall

    def x(value: float) -> float:
        return _LEFT + across.share(value) * room

    def y(value: float) -> float:
        return base - up.share(value) * tall

    def level(value: float, kind: str) -> Markup:
        return element("line", x1=_LEFT, x2=_LEFT + room, y1=y(value), y2=y(value), class_=kind)

    drawn = [element("text", title, x=_LEFT, y=12, class_="title")]
    for value, text in up.ticks:
        drawn += [level(value, "rule"), element("text", text, x=_LEFT - 6, y=y(value) + 4, text_anchor="end")]
    for value, text in across.ticks:
        drawn.append(element("line", x1=x(value), x2=x(value), y1=_TOP, y2=base, class_="rule"))
        drawn.append(element("text", text, x=x(value), y=base + 15, text_anchor="middle"))
    drawn.append(element("text", across.label, x=_LEFT + room / 2, y=base + 31, text_anchor="middle"))
    if goal is not None:
        drawn.append(level(goal, "goal"))
    drawn += [_polyline(line, [(x(a), y(b)) for a, b in line.points]) for line in lines]
    return element("g", *drawn, class_="plot")


def key(names: Sequence[str]) -> Markup:
    """A row at the origin that shows the style of each rank, from 1 on, with its name."""
    drawn, x = [], 0.0
    for rank, name in enumerate(names, 1):
        drawn.append(element("line", x1=x, x2=x + _SAMPLE - 6, y1=8, y2=8, class_=f"line line{rank}"))
        drawn.append(element("text", name, x=x + _SAMPLE, y=12))
        x += _SAMPLE + _LETTER * len(name) + 16
    return element("g", *drawn, class_="plot")


def _polyline(line: Line, points: Sequence[tuple[float, float]]) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", element("title", line.name), points=path, class_=f"line line{line.rank}")


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


def growth(shown: Growth) -> Markup:
    """Cost over size, each on a logarithmic axis from its first to its last value, with points joined by a line.

    A straight line is a power law, and its slope the exponent.
    """
    left, base, top, height = 60.0, 170.0, 14.0, 200.0
    sizes, costs = zip(*shown.points, strict=True)
    across = [left + position * (_WIDTH - left - 20) for position in _positions(sizes)]
    down = [base - position * (base - top) for position in _positions(costs)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    line = element("polyline", points=path, fill="none", class_="limit")
    dots = [element("circle", cx=x, cy=y, r=3, class_="value") for x, y in zip(across, down, strict=True)]
    words = [
        element("text", f"{cost:.3g}", x=left - 8, y=y + 4, text_anchor="end", class_="note")
        for cost, y in ((costs[0], down[0]), (costs[-1], down[-1]))
    ]
    words += [
        element("text", f"{size:,.0f}", x=x, y=base + 16, text_anchor="middle", class_="note")
        for size, x in ((sizes[0], across[0]), (sizes[-1], across[-1]))
    ]
    words.append(element("text", f"{shown.cost} over {shown.size}", x=_WIDTH / 2, y=height - 2, class_="note"))
    first, last = (f"{cost:.3g} at {size:,.0f} {shown.size}" for size, cost in (shown.points[0], shown.points[-1]))
    description = f"{shown.cost} from {first} to {last}."
    return drawing(f"Growth: {shown.label}", description, _WIDTH, height, line, *dots, *words)


def _positions(values: tuple[float, ...]) -> list[float]:
    """The position of each value between the least (0) and the greatest (1), by logarithm."""
    low, high = math.log(min(values)), math.log(max(values))
    return [(math.log(value) - low) / ((high - low) or 1.0) for value in values]


def growths(run: RunDirectory) -> list[Markup]:
    """The growths that a run has saved."""
    return [growth(shown) for shown in run.load_all("growth", Growth).values()]


def sites(run: RunDirectory) -> list[Markup]:
    """The losses, and then the bytes of links, that a run has saved."""
    losses = [loss_plot(curves) for curves in run.load_all("loss_curves", LossCurves).values()]
    return losses + [byte_dots(loads) for loads in run.load_all("link_bytes", LinkBytes).values()]
