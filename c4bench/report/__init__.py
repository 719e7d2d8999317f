"""Evaluate a run directory again, and draw it on one page."""

from c4bench.report.html import render
from c4bench.report.readme import rewrite
from c4bench.report.verdict import Verdict, evaluate_run, settle

__all__ = ["Verdict", "evaluate_run", "render", "rewrite", "settle"]
