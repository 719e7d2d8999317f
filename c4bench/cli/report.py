"""`c4bench report RUN_DIR...`: evaluate finished runs again, without hardware, and write their HTML."""

import argparse
import sys
from pathlib import Path

import msgspec

from c4bench.cli import Commands
from c4bench.record.encoding import encode
from c4bench.report import evaluate_run, render, rewrite

_BEST_FIRST = (0, 4, 1)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="evaluate run directories again and write their report.html")
    parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN_DIR", help="such as reports/runs/latest")
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="only rewrite the figures in this README from the runs"
    )
    parser.add_argument("--json", action="store_true", help="print each run's verdict as a line of JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.readme:
        rewrite(arguments.readme, arguments.run_directories)
        sys.stdout.write(f"rewrote the figures in {arguments.readme}\n")
        return 0
    codes = [_evaluate(path, as_json=arguments.json) for path in arguments.run_directories]
    return max(codes, key=_BEST_FIRST.index)


def _evaluate(run_directory: Path, *, as_json: bool) -> int:
    verdict, page = evaluate_run(run_directory), render(run_directory)
    if as_json:
        found = {"run": str(run_directory), "outcome": verdict.outcome, "report": str(page)}
        sys.stdout.write(encode(found | msgspec.to_builtins(verdict)).decode() + "\n")
    else:
        sys.stdout.write(f"{verdict.outcome}: {page}\n")
    return verdict.exit_code
