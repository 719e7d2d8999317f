"""One page that says what a run found: self-contained, no script, nothing loaded from elsewhere."""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from c4bench.c4p.metrics import jain_index, max_mean_ratio
from c4bench.record import Provenance, RunDirectory
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
    LinkLoads,
    LoadCase,
)
from c4bench.report import headlines
from c4bench.report.charts.ablation import bars, cases
from c4bench.report.charts.bullet import bullet
from c4bench.report.charts.fabric import fabric_panel
from c4bench.report.charts.growth import growth
from c4bench.report.charts.heatmap import heatmap, usual
from c4bench.report.charts.ranking import planned_links, ranking_panel
from c4bench.report.charts.timeline import axis_strip, common_axis, reached, timeline
from c4bench.report.verdict import evaluate_run
from c4bench.resources import resource
from c4bench.units import format_time

# Beyond this a drawing of single links is a cloud, and several of them half a megabyte; rankings still say it all.
_DRAWN_LINKS = 400
_DRAWN_LINKS_PAGE = 1200
_HEAT_NICS = 48


class LoadPanel(NamedTuple):
    """A fabric under one case; `drawing` is empty where there are too many links to draw."""

    label: str
    drawing: Markup
    ranking: Markup
    worst: str
    mmr: str
    jfi: str


class FaultRow(NamedTuple):
    """A fault with its time line and its stages in words."""

    fault: FaultTimeline
    drawing: Markup
    stages: list[tuple[str, str]]


class Confusion(NamedTuple):
    """How often each answer was given to each kind of fault; one row an expectation, one column an answer."""

    answers: list[str]
    rows: list[tuple[str, list[int]]]
    misses: list[CampaignTrial]


def render(run_dir: Path) -> Path:
    """Judge the run again and write `report.html` into its directory; returns the page.

    Sections that the run has no data for are left out. Raises UsageError for what is not a run directory, or damaged.
    """
    run = RunDirectory(run_dir)
    page = run.path / "report.html"
    page.write_text(_environment().get_template("report.html.j2").render(_context(run)), encoding="utf-8")
    return page


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource("reports", "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bullet": bullet,
        "written": headlines.format_value,
        "limit": headlines.format_limit,
        "labels": headlines.format_labels,
        "short": headlines.short,
    }
    return environment


def _context(run: RunDirectory) -> dict[str, Any]:
    """Everything the template names."""
    verdict = evaluate_run(run.path)
    provenance = run.provenance()
    faults = [fault for group in run.load_all("faults", Faults).values() for fault in group.faults]
    axis = common_axis(faults)
    return {
        "verdict": verdict,
        "provenance": provenance,
        "command": reproduce(provenance),
        "run_name": run.path.resolve().name,
        "headlines": headlines.headlines((*verdict.measurements, *verdict.timings)),
        "measurements": headlines.by_scenario(verdict.measurements),
        "timings": headlines.by_scenario(verdict.timings),
        "fabrics": _fabrics(run),
        "faults": [FaultRow(fault, timeline(fault, axis), _stages(fault)) for fault in faults],
        "axis": axis_strip(axis),
        "matrices": _matrices(run),
        "confusion": _confusion(run),
        "ablations": _ablations(run),
        "growths": [growth(shown) for shown in run.load_all("growth", Growth).values()],
    }


def reproduce(provenance: Provenance) -> str:
    """The command line that gives this run again, with its seed."""
    command = list(provenance.command)
    seeded = any(argument.split("=")[0] in {"--c4-seed", "--seed"} for argument in command)
    return shlex.join(command if seeded else [*command, "--c4-seed", str(provenance.seed)])


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
    """Panels of each scenario that saved link loads; its own fabric, or the run's."""
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
    """Every case of every ablation, those of all scenarios together where they have the same modes."""
    cells_by_modes: dict[tuple[str, ...], list[AblationCell]] = {}
    for ablation in run.load_all("ablation", Ablation).values():
        cells_by_modes.setdefault(ablation.modes, []).extend(ablation.cells)
    merged = [Ablation(modes, tuple(cells)) for modes, cells in cells_by_modes.items()]
    return [(case, cells, bars(case, cells)) for ablation in merged for case, cells in cases(ablation)]


def _index(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def _matrices(run: RunDirectory) -> list[tuple[str, list[tuple[str, Markup]]]]:
    """Heat maps of each scenario, all of its cells against one reference; those too large to read are left out."""
    groups = []
    for name, saved in run.load_all("delay_matrix", DelayMatrices).items():
        reference = usual(saved.matrices)
        small = [matrix for matrix in saved.matrices if len(matrix.nics) <= _HEAT_NICS]
        if small:
            groups.append((name, [(matrix.label, heatmap(matrix, reference)) for matrix in small]))
    return groups
