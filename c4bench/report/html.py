"""The report of a run: one page without scripts that loads nothing from elsewhere.

`SECTIONS` is the one place where a chart is registered (CONTRIBUTING.md).
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from c4bench.foreign_text import lines
from c4bench.model.evidence import EvidenceReport
from c4bench.record import RunDirectory
from c4bench.record.artefacts import Campaign, CampaignTrial
from c4bench.report import headlines
from c4bench.report.again import nodes, repeat_run, repeat_scenario
from c4bench.report.benchmark_words import described, wrong_results
from c4bench.report.charts import bars, curves, fabric, heatmap, timeline
from c4bench.report.charts.bars import bullet
from c4bench.report.evidence_panels import (
    blamed,
    clock_summary,
    headline,
    job_size,
    problem_lines,
    ranges,
    reports_of,
    source_lines,
    summary,
)
from c4bench.report.verdict import evaluate_run
from c4bench.resources import resource


class Section(NamedTuple):
    """A section of the page: its template's variable and file name, the artefacts it draws, and its content.

    `content` is empty or None for a run without these artefacts; the section is then left out.
    """

    name: str
    artefacts: tuple[str, ...]
    content: Callable[[RunDirectory], Any]


class Confusion(NamedTuple):
    """How often each kind of fault (row) got each answer (column)."""

    answers: list[str]
    rows: list[tuple[str, list[int]]]
    misses: list[CampaignTrial]


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


SECTIONS = (
    Section("fabrics", ("fabric", "link_loads"), fabric.panels),
    Section("faults", ("faults",), timeline.faults),
    Section("matrices", ("delay_matrix",), heatmap.matrices),
    Section("confusion", ("campaign",), _confusion),
    Section("ablations", ("ablation",), bars.ablations),
    Section("sites", ("loss_curves", "link_bytes"), curves.sites),
    Section("evidences", (), reports_of),
    Section("growths", ("growth",), curves.growths),
)


def write_report(run_dir: Path) -> Path:
    """Write the page of a run, as `c4bench.report.render` does."""
    run = RunDirectory(run_dir)
    return run.write_page("report.html", environment().get_template("report.html.j2").render(_context(run)))


def environment() -> jinja2.Environment:
    """Of all templates: what they print prints and is escaped, and what they name must be given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource("reports", "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ranges": ranges,
        "blamed": blamed,
        "clocks": clock_summary,
        "size": job_size,
        "summary": summary,
        "headline": headline,
        "described": described,
        "wrong": wrong_results,
        "sources": source_lines,
        "problems": problem_lines,
        "bullet": bullet,
        "written": headlines.format_value,
        "limit": headlines.format_limit,
        "labels": headlines.format_labels,
        "short": headlines.short,
        "plain": headlines.plain,
    }
    return environment


def _printable(value: object) -> object:
    """What a template prints, without control characters and marks that change the direction of text."""
    return lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(run: RunDirectory) -> dict[str, Any]:
    """Everything the template names."""
    verdict = evaluate_run(run.path)
    provenance = run.provenance()
    sections = {section.name: content for section in SECTIONS if (content := section.content(run))}
    return {
        "verdict": verdict,
        "provenance": provenance,
        "command": repeat_run(provenance),
        "again": {name: repeat_scenario(provenance, node) for name, node in nodes(run).items()},
        "run_name": run.path.resolve().name,
        "headlines": headlines.headlines((*verdict.measurements, *verdict.timings)),
        "measurements": headlines.by_scenario(verdict.measurements),
        "timings": headlines.by_scenario(verdict.timings),
        "sections": list(sections),
    } | sections


def evidence_page(report: EvidenceReport) -> str:
    """A page of its own on what files of other tools say, as HTML; it loads nothing and has no scripts."""
    return environment().get_template("evidence.html.j2").render(report=report)
