"""The sections of the report that draw artefacts: the one place where a chart is registered.

To add a chart: declare its artefact in `record.artefacts`, draw it in a module of `charts`, lay it out in
`reports/templates/sections/NAME.html.j2`, and add a `Section` here.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from c4bench.c4p.evaluation.metrics import jain_index, max_mean_ratio
from c4bench.record import RunDirectory
from c4bench.record.artefacts import (
    Ablation,
    AblationCell,
    Campaign,
    CampaignTrial,
    DelayMatrices,
    Fabric,
    Faults,
    FaultTimeline,
    Growth,
    LinkBytes,
    LinkLoads,
    LoadCase,
    LossCurves,
)
from c4bench.report.charts.bars import bars, cases
from c4bench.report.charts.curves import byte_dots, growth, loss_plot
from c4bench.report.charts.fabric import fabric_panel, planned_links, ranking_panel
from c4bench.report.charts.heatmap import heatmap, usual
from c4bench.report.charts.timeline import axis_strip, common_axis, reached, timeline
from c4bench.report.evidence_panels import reports_of
from c4bench.units import format_time

# With more links a drawing is unreadable and takes half a megabyte; the rankings still show the loads.
_DRAWN_LINKS = 400
_DRAWN_LINKS_PAGE = 1200
_HEAT_NICS = 48


class Section(NamedTuple):
    """A section of the page: its template's variable and file name, the artefacts it draws, and its content.

    `content` is empty or None for a run without these artefacts; the section is then left out.
    """

    name: str
    artefacts: tuple[str, ...]
    content: Callable[[RunDirectory], Any]


class LoadPanel(NamedTuple):
    """A fabric under one case; `drawing` is empty where there are too many links to draw."""

    label: str
    drawing: Markup
    ranking: Markup
    worst: str
    mmr: str
    jfi: str


class Confusion(NamedTuple):
    """How often each kind of fault (row) got each answer (column)."""

    answers: list[str]
    rows: list[tuple[str, list[int]]]
    misses: list[CampaignTrial]


def _faults(run: RunDirectory) -> tuple[list[tuple[FaultTimeline, Markup, list[tuple[str, str]]]], Markup] | None:
    """Every injected fault with its time line and its stages in words; and the time axis that all have."""
    faults = [fault for group in run.load_all("faults", Faults).values() for fault in group.faults]
    axis = common_axis(faults)
    return ([(fault, timeline(fault, axis), _stages(fault)) for fault in faults], axis_strip(axis)) if faults else None


def _growths(run: RunDirectory) -> list[Markup]:
    return [growth(shown) for shown in run.load_all("growth", Growth).values()]


def _confusion(run: RunDirectory) -> Confusion | None:
    trials = [trial for campaign in run.load_all("campaign", Campaign).values() for trial in campaign.trials]
    if not trials:
        return None
    counts = Counter((trial.expected, trial.said) for trial in trials)
    answers = sorted({trial.said for trial in trials})
    rows = [
        (expected, [counts[expected, answer] for answer in answers])
        for expected in sorted({t.expected for t in trials})
    ]
    return Confusion(answers, rows, [trial for trial in trials if not trial.right])


def _stages(fault: FaultTimeline) -> list[tuple[str, str]]:
    return [(stage, format_time(time_s)) for stage, time_s in reached(fault)]


def _fabrics(run: RunDirectory) -> list[tuple[str, list[LoadPanel]]]:
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


def _ablations(run: RunDirectory) -> list[tuple[str, list[AblationCell], Markup]]:
    """Every case of every ablation; scenarios with the same modes are drawn together."""
    cells_by_modes: dict[tuple[str, ...], list[AblationCell]] = {}
    for ablation in run.load_all("ablation", Ablation).values():
        cells_by_modes.setdefault(ablation.modes, []).extend(ablation.cells)
    merged = [Ablation(modes, tuple(cells)) for modes, cells in cells_by_modes.items()]
    return [(case, cells, bars(case, cells)) for ablation in merged for case, cells in cases(ablation)]


def _index(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def _matrices(run: RunDirectory) -> list[tuple[str, list[tuple[str, Markup]]]]:
    """Heat maps of each scenario, all with one reference; those too large to read are left out."""
    groups = []
    for name, saved in run.load_all("delay_matrix", DelayMatrices).items():
        reference = usual(saved.matrices)
        small = [matrix for matrix in saved.matrices if len(matrix.nics) <= _HEAT_NICS]
        if small:
            groups.append((name, [(matrix.label, heatmap(matrix, reference)) for matrix in small]))
    return groups


def _sites(run: RunDirectory) -> list[Markup]:
    losses = [loss_plot(curves) for curves in run.load_all("loss_curves", LossCurves).values()]
    return losses + [byte_dots(loads) for loads in run.load_all("link_bytes", LinkBytes).values()]


SECTIONS = (
    Section("fabrics", ("fabric", "link_loads"), _fabrics),
    Section("faults", ("faults",), _faults),
    Section("matrices", ("delay_matrix",), _matrices),
    Section("confusion", ("campaign",), _confusion),
    Section("ablations", ("ablation",), _ablations),
    Section("sites", ("loss_curves", "link_bytes"), _sites),
    Section("evidences", (), reports_of),
    Section("growths", ("growth",), _growths),
)
