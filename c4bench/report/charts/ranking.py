"""Bars of the loads of the links between switches, largest first: a flat top shows a good plan."""

from collections.abc import Sequence

from markupsafe import Markup

from c4bench.record.artefacts import Fabric, LoadCase
from c4bench.report.charts.fabric import step
from c4bench.report.svg import drawing, element

_WIDTH, _HEIGHT, _BASE = 480.0, 96.0, 92.0
_BARS = 240


def planned_links(fabric: Fabric, case: LoadCase) -> list[float]:
    """The loads of the links between switches, largest first: only these depend on the choice of paths."""
    switches = {switch.name for switch in fabric.switches}
    between = (link for link in fabric.links if link.source in switches and link.target in switches)
    return sorted((case.loads.get(link.hop, 0.0) for link in between), reverse=True)


def ranking_panel(label: str, loads: Sequence[float], top: float) -> Markup:
    """Bars on a scale that ends at `top`, the largest load of any case, with a line at the links' rate."""
    bars = _thinned(loads)
    slot = _WIDTH / max(len(bars), 1)
    gap = min(2.0, slot * 0.25)
    scale = (_BASE - 10) / max(top, 1.05)
    drawn = [
        element(
            "rect", x=index * slot, y=_BASE - load * scale, width=slot - gap, height=load * scale, class_=step(load)
        )
        for index, load in enumerate(bars)
    ]
    full = _BASE - scale
    line = element("line", x1=0, x2=_WIDTH, y1=full, y2=full, class_="limit")
    caption = element("text", "link rate", x=_WIDTH, y=full - 4, text_anchor="end", class_="note")
    floor = element("line", x1=0, x2=_WIDTH, y1=_BASE, y2=_BASE, class_="axis")
    description = f"{len(loads)} links between switches, from {loads[0]:.0%} to {loads[-1]:.0%} of their rate."
    return drawing(f"Links by load under {label}", description, _WIDTH, _HEIGHT, *drawn, floor, line, caption)


def _thinned(loads: Sequence[float]) -> Sequence[float]:
    """At most as many loads as bars can be told apart; the first and largest always stays."""
    every = -(-len(loads) // _BARS)
    return loads[::every]
