"""Evaluate a run directory again, and draw it on one page."""

from pathlib import Path

from c4bench.report.verdict import Verdict, conclude, evaluate_run

__all__ = ["Verdict", "conclude", "evaluate_run", "render"]


def render(run_dir: Path) -> Path:
    """Evaluate the run again and write `report.html` into its directory; return the page's path.

    Sections without data are left out. Raises UsageError if `run_dir` is not a run directory or is damaged.
    """
    from c4bench.report.html import write_report  # noqa: PLC0415  (charts and templates take long to import)

    return write_report(run_dir)
