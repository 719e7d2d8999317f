"""`c4bench report RUN_DIR...`: evaluate finished runs again, without hardware, and write their HTML."""

import argparse
import sys
from pathlib import Path

from c4bench.cli import Commands
from c4bench.report import evaluate_run, render, rewrite

_BEST_FIRST = (0, 4, 1)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="evaluate run directories again and write their report.html")
    parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN_DIR", help="such as reports/runs/latest")
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="only rewrite the figures in this README from the runs"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.readme:
        rewrite(arguments.readme, arguments.run_directories)
        sys.stdout.write(f"rewrote the figures in {arguments.readme}\n")
        return 0
    return max(map(_evaluate, arguments.run_directories), key=_BEST_FIRST.index)


def _evaluate(run_directory: Path) -> int:
    verdict = evaluate_run(run_directory)
    sys.stdout.write(f"{verdict.outcome}: {render(run_directory)}\n")
    return verdict.exit_code
