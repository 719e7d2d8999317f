"""Evaluate a run directory again, and draw it on one page."""

from c4bench.report.html import render
from c4bench.report.verdict import Verdict, conclude, evaluate_run

__all__ = ["Verdict", "conclude", "evaluate_run", "render"]
