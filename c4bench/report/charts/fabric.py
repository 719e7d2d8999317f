"""Loads of links: a drawing of the fabric, where more load is wider and darker, and bars of the largest loads."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from c4bench.c4p.evenness import jain_index, max_mean_ratio
from c4bench.record import RunDirectory
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, LinkLoads, LoadCase
from c4bench.report.svg import drawing, element

# With more links a drawing is unreadable and takes half a megabyte; the rankings still show the loads.
_DRAWN_LINKS = 400
_DRAWN_LINKS_PAGE = 1200
_WIDTH = 480.0
_TIER_GAP = 112.0
_TOP = 22.0
_MARGIN = 8.0
_RANKING_HEIGHT, _BASE = 96.0, 92.0
_BARS = 240
_STEPS = (0.02, 0.35, 0.65, 0.9, 1.005)

Point = tuple[float, float]


def fabric_panel(fabric: Fabric, case: LoadCase) -> Markup:
    """The fabric from its top tier down to the hosts, the most loaded links on top."""
    points, nodes, height = _layout(fabric)
    drawable = [link for link in fabric.links if link.source in points and link.target in points]
    drawable.sort(key=lambda link: case.loads.get(link.hop, 0.0))
    # Many lines are drawn thinner: otherwise the middle of a dense fabric is one dark area.
    scale = min(1.0, 8.5 / max(len(drawable), 1) ** 0.5)
    lines = [_line(link, case.loads.get(link.hop, 0.0), points, scale) for link in drawable]
    title = f"Link loads under {case.label}"
    worst = max((case.loads.get(link.hop, 0.0) for link in fabric.links), default=0.0)
    description = f"{len(drawable)} directed links; the most loaded carries {worst:.0%} of its rate."
    return drawing(title, description, _WIDTH, height, *lines, *nodes)


def step(load: float) -> str:
    """The CSS class of a load: l0 (idle) to l4 (full), l5 (more than it can carry)."""
    return f"l{sum(load > bound for bound in _STEPS)}"


def _layout(fabric: Fabric) -> tuple[dict[str, Point], list[Markup], float]:
    """The position of every switch and NIC, the drawn nodes, and the drawing's height."""
    tiers = sorted({switch.tier for switch in fabric.switches}, reverse=True)
    points: dict[str, Point] = {}
    nodes = []
    for row, tier in enumerate(tiers):
        names = [switch.name for switch in fabric.switches if switch.tier == tier]
        for name, x in zip(names, _spread(len(names)), strict=True):
            points[name] = x, _TOP + row * _TIER_GAP
            nodes.append(_node(name, points[name], _slot(len(names)), "switch"))
    bottom = _TOP + max(len(tiers), 1) * _TIER_GAP - 26
    for host, x in zip(_by_leaf(fabric, points), _spread(len(fabric.hosts)), strict=True):
        slot = _slot(len(fabric.hosts))
        nodes.append(_node(host.name, (x, bottom), slot, "host"))
        reach = min(slot, 50) * 0.32
        for index, nic in enumerate(host.nics):
            share = (index + 0.5) / len(host.nics) * 2 - 1
            points[nic] = x + share * reach, bottom - 10
    return points, nodes, bottom + 18


def _by_leaf(fabric: Fabric, points: Mapping[str, Point]) -> list[FabricHost]:
    """Hosts ordered by their leaves, so that access links do not cross."""
    above: dict[str, list[float]] = {}
    for link in fabric.links:
        if link.target in points:
            above.setdefault(link.source, []).append(points[link.target][0])

    def across(host: FabricHost) -> float:
        columns = [x for nic in host.nics for x in above.get(nic, ())]
        return sum(columns) / len(columns) if columns else _WIDTH

    return sorted(fabric.hosts, key=across)


def _slot(count: int) -> float:
    return (_WIDTH - 2 * _MARGIN) / max(count, 1)


def _spread(count: int) -> Sequence[float]:
    return [_MARGIN + _slot(count) * (index + 0.5) for index in range(count)]


def _node(name: str, point: Point, slot: float, kind: str) -> Markup:
    x, y = point
    width = min(62.0, slot - 4)
    box = element("rect", x=x - width / 2, y=y - 10, width=width, height=20, rx=5)
    # A name that does not fit into its box is only in the tooltip.
    fits = len(name) * 6.6 < width
    label = (element("text", name, x=x, y=y + 4, text_anchor="middle"),) if fits else ()
    return element("g", element("title", name), box, *label, class_=f"node {kind}")


def _line(link: FabricLink, load: float, points: Mapping[str, Point], scale: float) -> Markup:
    (x1, y1), (x2, y2) = points[link.source], points[link.target]
    # Each direction is shifted to its right, so that both are visible.
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    dx, dy = (y1 - y2) / length * 2.2 * scale, (x2 - x1) / length * 2.2 * scale
    tip = element("title", f"{link.source} to {link.target}: {load:.0%}")
    ends = {"x1": x1 + dx, "y1": y1 + dy, "x2": x2 + dx, "y2": y2 + dy}
    return element("line", tip, **ends, stroke_width=(1 + 2.6 * min(load, 1.2)) * scale, class_=step(load))


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
    return drawing(f"Links by load under {label}", description, _WIDTH, _RANKING_HEIGHT, *drawn, floor, line, caption)


def _thinned(loads: Sequence[float]) -> Sequence[float]:
    """At most as many loads as bars can be told apart; the first and largest always stays."""
    every = -(-len(loads) // _BARS)
    return loads[::every]


class LoadPanel(NamedTuple):
    """A fabric under one case; `drawing` is empty where there are too many links to draw."""

    label: str
    drawing: Markup
    ranking: Markup
    worst: str
    mmr: str
    jfi: str


def panels(run: RunDirectory) -> list[tuple[str, list[LoadPanel]]]:
    """Panels of each scenario that saved link loads, on its own fabric or the run's."""
    fabrics = run.load_all("fabric", Fabric)
    fallback = next(iter(fabrics.values()), None)
    groups, budget = [], _DRAWN_LINKS_PAGE
    for name, loads in run.load_all("link_loads", LinkLoads).items():
        fabric = fabrics.get(name, fallback)
        if fabric is None or not loads.cases:
            continue
        lines = len(fabric.links) * len(loads.cases)
        draws = len(fabric.links) <= _DRAWN_LINKS and lines <= budget
        budget -= lines if draws else 0
        groups.append((name, _load_panels(fabric, loads.cases, draws=draws)))
    return groups


def _load_panels(fabric: Fabric, cases: Sequence[LoadCase], *, draws: bool) -> list[LoadPanel]:
    ranked = [planned_links(fabric, case) for case in cases]
    top = max((loads[0] for loads in ranked if loads), default=1.0)
    return [
        LoadPanel(
            label=case.label,
            drawing=fabric_panel(fabric, case) if draws else Markup(),
            ranking=ranking_panel(case.label, loads, top) if loads else Markup(),
            worst=f"{max(case.loads.values(), default=0.0):.0%}",
            mmr=_index(max_mean_ratio(loads)),
            jfi=_index(jain_index(loads)),
        )
        for case, loads in zip(cases, ranked, strict=True)
    ]


def _index(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.2f}"
