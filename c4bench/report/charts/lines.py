"""Lines over two axes, for instance a measure over bandwidth, with the names of the lines in a key."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from c4bench.report.svg import element

_LEFT, _TOP, _BELOW = 42.0, 22.0, 38.0
_SAMPLE, _LETTER = 30.0, 6.4


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
