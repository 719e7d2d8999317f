"""`c4bench report RUN_DIR`: judge a finished run again, without hardware, and write its HTML."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from c4bench.report import evaluate_run, render

if TYPE_CHECKING:
    from c4bench.cli import Commands


def register(commands: "Commands") -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="judge a run directory again and write its report.html")
    parser.add_argument("run_directory", type=Path, metavar="RUN_DIR", help="such as reports/runs/latest")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    verdict = evaluate_run(arguments.run_directory)
    sys.stdout.write(f"{verdict.outcome}: {render(arguments.run_directory)}\n")
    return verdict.exit_code
