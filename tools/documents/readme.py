"""The figures in README.md and docs/figures.md: tables between two markers, made from what runs have measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UsageError
from c4bench.foreign_text import markdown
from c4bench.model.measurement import Measurement, Outcome
from c4bench.record import Provenance, RunDirectory
from c4bench.report.headlines import format_limit, format_value, margin
from c4bench.report.verdict import evaluate_run
from tools.documents.generated import frame
from tools.documents.readme_rows import HIGHLIGHTS, ROWS, Highlight, Row

_BLOCK = "figures"
_LAB = "softroce"
_ONE_CODE = {"version": attrgetter("version"), "commit": attrgetter("git_commit")}
_ONE_LAB = {"seed": attrgetter("seed"), "kernel": attrgetter("environment.kernel")}


class _Run(NamedTuple):
    path: Path
    provenance: Provenance
    measured: tuple[Measurement, ...]


class _Cell(NamedTuple):
    """A row's last cells, and the run that they are of; None for what the documents have had."""

    row: Row
    limit: str
    value: str
    run: _Run | None


def figures_page(readme: Path) -> Path:
    """The document beside `readme` that has all figures."""
    return readme.parent / "docs" / "figures.md"


def rewrite(
    readme: Path,
    run_dirs: Iterable[Path],
    rows: Sequence[Row] = ROWS,
    highlights: Sequence[Highlight] = HIGHLIGHTS,
) -> None:
    """Replace what is between the markers in `readme` by `highlights`, and in docs/figures.md beside it by all `rows`.

    The newest run that has a row's measurement is used. A row of nights that no run has stays as it is. Raises
    UsageError if no run has another one, if it has no value, if the runs used for these differ in version, commit, seed
    or lab kernel, or if a marker is missing; both are then unchanged.
    """
    few, full = frame(readme, _BLOCK), frame(figures_page(readme), _BLOCK)
    runs = sorted(map(_read, run_dirs), key=lambda run: run.provenance.started_at, reverse=True)
    present = _lines(figures_page(readme))
    cells = [_cell(row, runs, present) for row in rows]
    used = [cell.run for cell in cells if cell.run and not cell.row.nightly]
    _agree(used, _ONE_CODE)
    _agree([run for run in used if run.provenance.backend == _LAB], _ONE_LAB)
    by_text = {cell.row.text: cell for cell in cells}
    table = [
        "| `make lab`, `make test`, `make night` | measured | limit | beside it |",
        "|---|---|---|---|",
        *(_highlight(highlight, by_text) for highlight in highlights),
    ]
    readme.write_text(few.filled("\n".join(table), _source(used)))
    figures_page(readme).write_text(full.filled(*_tables(cells), _source(used)))


def _read(path: Path) -> _Run:
    verdict = evaluate_run(path)
    return _Run(path, RunDirectory(path).provenance(), (*verdict.measurements, *verdict.timings))


def _lines(page: Path) -> dict[str, tuple[str, str]]:
    """What the page has by a row's text: limit and value."""
    rows = (line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| "))
    return {cells[0]: (cells[1], cells[2]) for cells in rows if len(cells) == 3}


def _cell(row: Row, newest_first: Iterable[_Run], present: Mapping[str, tuple[str, str]]) -> _Cell:
    for run in newest_first:
        selected = [measurement for measurement in run.measured if _selected(row, run, measurement)]
        if selected:
            worst = _worst(row, run, selected)
            return _Cell(row, markdown(format_limit(worst)), _value(worst), run)
    if row.nightly and row.text in present:
        return _Cell(row, *present[row.text], None)
    where = f" on {row.topology}" if row.topology else ""
    labels = "".join(f", {label} {value}" for label, value in row.labels.items())
    raise UsageError(f"no run has {row.name} of {row.scenario}{where}{labels} ({row.text!r}); run {row.table}")


def _selected(row: Row, run: _Run, measurement: Measurement) -> bool:
    return (
        measurement.name == row.name
        and fnmatchcase(measurement.scenario, row.scenario)
        and row.topology in {"", run.provenance.topology}
        and all(measurement.labels.get(label) in _allowed(value) for label, value in row.labels.items())
    )


def _allowed(value: str | int | tuple[str, ...]) -> tuple[str | int, ...]:
    return value if isinstance(value, tuple) else (value,)


def _worst(row: Row, run: _Run, selected: Sequence[Measurement]) -> Measurement:
    for measurement in selected:
        if measurement.outcome is Outcome.INCONCLUSIVE:
            raise UsageError(f"{run.path}: {row.name} of {measurement.scenario} is inconclusive; run it again")
        if not measurement.limit and len(selected) > 1:
            raise UsageError(
                f"{run.path}: {len(selected)} measurements {row.name} without a limit; give the row labels"
            )
    return min(selected, key=lambda measurement: margin(measurement) if measurement.limit else 0.0)


def _agree(runs: Sequence[_Run], fields: Mapping[str, Callable[[Provenance], object]]) -> None:
    for field, of in fields.items():
        for run in runs:
            first, other = of(runs[0].provenance), of(run.provenance)
            if first != other:
                raise UsageError(
                    f"{runs[0].path} and {run.path} differ in {field}: {first} and {other}; "
                    "run `make test` again, or give only runs that agree"
                )


def _tables(cells: Sequence[_Cell]) -> list[str]:
    return [
        "\n".join([f"| {table} | limit | measured |", "|---|---|---|", *map(_line, group)])
        for table, group in groupby(cells, key=lambda cell: cell.row.table)
    ]


def _line(cell: _Cell) -> str:
    return f"| {cell.row.text} | {cell.limit} | {cell.value} |"


def _highlight(highlight: Highlight, cells: Mapping[str, _Cell]) -> str:
    shown, beside = cells[highlight.row], cells[highlight.beside_row]
    return f"| {highlight.text} | {shown.value} | {shown.limit} | {highlight.beside}: {beside.value} |"


def _value(measurement: Measurement) -> str:
    """The value with its interval, and whether its limit was missed."""
    value_text = markdown(format_value(measurement))
    if {"low", "high"} <= measurement.labels.keys():
        value_text += f" ({float(measurement.labels['low']):.3g} to {float(measurement.labels['high']):.3g})"
    if measurement.outcome is Outcome.FAIL:
        value_text = f"**{value_text}**, missed"
    return value_text


def _source(used: Iterable[_Run]) -> str:
    labs = [run.provenance for run in used if run.provenance.backend == _LAB]
    provenance = labs[0] if labs else next(run.provenance for run in used)
    kernel = f", Linux {markdown(provenance.environment.kernel)} in the lab" if labs else ""
    version = markdown(provenance.version)
    return f"Measured with c4bench {version}, seed {provenance.seed}{kernel}. `make figures` rewrites this."
