"""What a run directory says: judged again, and drawn on one page."""

from c4bench.report.html import render
from c4bench.report.judge import Verdict, judge_run
from c4bench.report.readme import rewrite

__all__ = ["Verdict", "judge_run", "render", "rewrite"]
