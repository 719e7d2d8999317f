"""Timelines of the stages of finding each fault, all on one axis that starts at the onset."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from c4bench.record import RunDirectory
from c4bench.record.artefacts import Faults, FaultTimeline
from c4bench.report.svg import element, percent, strip
from c4bench.units import format_time

STAGES = ("observed", "alarmed", "named", "isolated", "resumed")
_HEIGHT = 16.0
_MIDDLE = _HEIGHT / 2


class Axis(NamedTuple):
    """Maps seconds since onset to a share of the width; the right edge is kept for the last dot and label."""

    end_s: float
    tick_s: float

    def share(self, time_s: float) -> float:
        """The time's position across the strip, 0 to 1."""
        return 0.97 * min(max(time_s / self.end_s, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """The times that are marked, in seconds."""
        count = math.floor(self.end_s / self.tick_s + 1e-9)
        return [index * self.tick_s for index in range(count + 1)]


def reached(fault: FaultTimeline) -> list[tuple[str, float]]:
    """The stages that the fault reached, with seconds since onset."""
    times = ((stage, getattr(fault, f"{stage}_s")) for stage in STAGES)
    return [(stage, time_s - fault.onset_s) for stage, time_s in times if time_s is not None]


def common_axis(faults: Sequence[FaultTimeline]) -> Axis:
    """An axis as long as the longest fault, with at most six round ticks."""
    longest = max((time_s for fault in faults for _, time_s in reached(fault)), default=0.0) or 1.0
    decade: float = 10 ** math.floor(math.log10(longest))
    tick = next(decade * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if longest / (decade * part) <= 5)
    return Axis(math.ceil(longest / tick - 1e-9) * tick, tick)


def timeline(fault: FaultTimeline, axis: Axis) -> Markup:
    """One fault's stages as joined segments, each with a dot at its end; a dashed line if it was never named."""
    stages = reached(fault)
    start = 0.0
    drawn = [_grid(axis)]
    for stage, time_s in stages:
        drawn.append(_segment(axis, start, time_s, stage))
        start = time_s
    if fault.named_s is None:
        left, right = percent(axis.share(start)), percent(axis.share(axis.end_s))
        drawn.append(element("line", x1=left, x2=right, y1=_MIDDLE, y2=_MIDDLE, class_="never"))
    onset = percent(axis.share(0.0))
    drawn.append(element("line", x1=onset, x2=onset, y1=0, y2=_HEIGHT, class_="onset"))
    drawn += [_dot(axis, stage, time_s) for stage, time_s in stages]
    stages_text = ", ".join(f"{stage} after {format_time(time_s)}" for stage, time_s in stages) or "never observed"
    return strip(f"{fault.name} on {fault.target}", f"From onset: {stages_text}.", _HEIGHT, *drawn)


def axis_strip(axis: Axis) -> Markup:
    """The labels of the ticks, to be placed below the timelines."""
    labels = [
        element(
            "text",
            f"{tick:.3g} s" if tick else "onset",
            x=percent(axis.share(tick)),
            y=12,
            text_anchor=_anchor(tick, axis),
        )
        for tick in axis.ticks()
    ]
    return strip("Time axis", f"Seconds since onset, to {axis.end_s:.3g} s.", 16, *labels)


def _anchor(tick: float, axis: Axis) -> str:
    if not tick:
        return "start"
    return "end" if tick > axis.end_s * 0.98 else "middle"


def _grid(axis: Axis) -> Markup:
    places = [percent(axis.share(tick)) for tick in axis.ticks()]
    return Markup("").join(element("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_="grid") for x in places)


def _segment(axis: Axis, start_s: float, end_s: float, stage: str) -> Markup:
    left, right = axis.share(start_s), axis.share(end_s)
    width = percent(max(right - left, 0.0))
    return element("rect", x=percent(left), width=width, y=_MIDDLE - 3, height=6, class_=f"stage {stage}")


def _dot(axis: Axis, stage: str, time_s: float) -> Markup:
    tip = element("title", f"{stage} after {format_time(time_s)}")
    return element("circle", tip, cx=percent(axis.share(time_s)), cy=_MIDDLE, r=4, class_=f"stage {stage}")


def faults(run: RunDirectory) -> tuple[list[tuple[FaultTimeline, Markup, list[tuple[str, str]]]], Markup] | None:
    """Every injected fault with its time line and its stages in words; and the time axis that all have."""
    found = [fault for group in run.load_all("faults", Faults).values() for fault in group.faults]
    axis, rows = common_axis(found), []
    for fault in found:
        stages = [(stage, format_time(time_s)) for stage, time_s in reached(fault)]
        rows.append((fault, timeline(fault, axis), stages))
    return (rows, axis_strip(axis)) if rows else None
