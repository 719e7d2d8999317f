"""Figures of a document that runs have measured: losses by tokens and bytes by link of training at several sites."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from c4bench.errors import UsageError
from c4bench.foreign_text import markdown
from c4bench.record import RunDirectory
from c4bench.record.artefacts import LinkBytes, LossCurves
from c4bench.report.charts.curves import byte_dots, loss_plot
from c4bench.report.svg import standalone
from tools.documents.generated import Frame, frame, stylesheet


class RunFigure(NamedTuple):
    """A figure: the artefact that it shows, which names its markers too, how it is drawn, and its alternative text."""

    artefact: str
    kind: type[Any]
    draw: Callable[..., Markup]
    text: str

    @property
    def file(self) -> str:
        """Its file in `img`, beside the document."""
        return f"{self.artefact.replace('_', '-')}.svg"


FIGURES = (
    RunFigure("loss_curves", LossCurves, loss_plot, "Training loss over tokens, by method"),
    RunFigure("link_bytes", LinkBytes, byte_dots, "Bytes of a step by link, by method"),
)


def rewrite_run_figures(document: Path, runs: Sequence[Path]) -> list[str]:
    """Draw each figure from the last of `runs` that has measured it, into `document` and `img` beside it.

    Returns the files written. Raises UsageError, and writes nothing, if no run has any of them, or the document cannot
    be read or lacks a marker.
    """
    found = [(figure, run) for figure in FIGURES if (run := _last_with(figure, runs))]
    if not found:
        raise UsageError(f"no run has {' or '.join(figure.artefact for figure in FIGURES)}; see docs/diloco.md for how")
    for figure, _ in found:
        frame(document, figure.artefact)
    images = document.parent / "img"
    images.mkdir(exist_ok=True)
    for figure, run in found:
        (images / figure.file).write_text(f"{drawn(figure, run)}\n")
        document.write_text(_with(frame(document, figure.artefact), figure, run))
    return [figure.file for figure, _ in found]


def drawn(figure: RunFigure, run: RunDirectory) -> Markup:
    """The figure of a run, as a file of its own."""
    css = stylesheet()

    def alone(title: str, description: str, width: float, height: float, *children: str) -> Markup:
        return standalone(title, description, width, height, css, *children)

    shown = next(iter(run.load_all(figure.artefact, figure.kind).values()))
    return figure.draw(shown, alone)


def _last_with(figure: RunFigure, runs: Sequence[Path]) -> RunDirectory | None:
    known = [run for run in map(RunDirectory, runs) if run.load_all(figure.artefact, figure.kind)]
    return known[-1] if known else None


def _with(surrounding: Frame, figure: RunFigure, run: RunDirectory) -> str:
    by = run.provenance()
    return surrounding.filled(
        f"![{figure.text}](img/{figure.file})",
        f"Measured with c4bench {markdown(by.version)}, seed {by.seed}. "
        "`python -m tools figures` rewrites this from a run.",
    )
