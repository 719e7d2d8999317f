"""A measurement against its limit, as a bullet bar (Few: Bullet Graph Design Specification, 2013)."""

from markupsafe import Markup

from c4bench.model.measurement import Measurement
from c4bench.report.svg import element, percent, strip

_HEIGHT = 14.0


def bullet(measurement: Measurement) -> Markup:
    """The value as a bar from zero, the limit as a mark; the side that passes is shaded."""
    sign, bound = measurement.limit.split()
    limit = float(bound)
    span = max(measurement.value, limit, 0.0) * 1.15 or 1.0
    at, reach = max(limit, 0.0) / span, max(measurement.value, 0.0) / span
    good = (at, 1 - at) if sign[0] == ">" else (0.0, at)
    shade = () if sign == "==" else (_bar(*good, 0, _HEIGHT, "good"),)
    value = _bar(0.0, reach, 4, 6, f"value {measurement.outcome}")
    mark = element("line", x1=percent(at), x2=percent(at), y1=0, y2=_HEIGHT, class_="limit")
    title = f"{measurement.name}: {measurement.outcome}"
    description = f"{measurement.value:.6g} {measurement.unit}, limit {measurement.limit}."
    return strip(title, description, _HEIGHT, _bar(0.0, 1.0, 0, _HEIGHT, "track"), *shade, value, mark)


def _bar(start: float, length: float, y: float, height: float, kind: str) -> Markup:
    return element("rect", x=percent(start), width=percent(length), y=y, height=height, rx=2, class_=kind)
