"""Cost over size on logarithmic scales: a straight line is a power law, and its slope the exponent."""

import math

from markupsafe import Markup

from c4bench.record.artefacts import Growth
from c4bench.report.svg import drawing, element

_WIDTH, _HEIGHT, _LEFT, _BASE, _TOP = 480.0, 200.0, 60.0, 170.0, 14.0


def growth(shown: Growth) -> Markup:
    """Points joined by a line, each axis from its first to its last value."""
    sizes, costs = zip(*shown.points, strict=True)
    across = [_LEFT + position * (_WIDTH - _LEFT - 20) for position in _positions(sizes)]
    down = [_BASE - position * (_BASE - _TOP) for position in _positions(costs)]
    line = element(
        "polyline",
        points=" ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True)),
        fill="none",
        class_="limit",
    )
    dots = [element("circle", cx=x, cy=y, r=3, class_="value") for x, y in zip(across, down, strict=True)]
    words = [
        element("text", f"{cost:.3g}", x=_LEFT - 8, y=y + 4, text_anchor="end", class_="note")
        for cost, y in ((costs[0], down[0]), (costs[-1], down[-1]))
    ]
    words += [
        element("text", f"{size:,.0f}", x=x, y=_BASE + 16, text_anchor="middle", class_="note")
        for size, x in ((sizes[0], across[0]), (sizes[-1], across[-1]))
    ]
    words.append(element("text", f"{shown.cost} over {shown.size}", x=_WIDTH / 2, y=_HEIGHT - 2, class_="note"))
    first, last = (f"{cost:.3g} at {size:,.0f} {shown.size}" for size, cost in (shown.points[0], shown.points[-1]))
    description = f"{shown.cost} from {first} to {last}."
    return drawing(f"Growth: {shown.label}", description, _WIDTH, _HEIGHT, line, *dots, *words)


def _positions(values: tuple[float, ...]) -> list[float]:
    """The position of each value between the least (0) and the greatest (1), by logarithm."""
    low, high = math.log(min(values)), math.log(max(values))
    return [(math.log(value) - low) / ((high - low) or 1.0) for value in values]
