"""`c4bench report RUN_DIR...`: evaluate finished runs again, without hardware, and write or compare their reports."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from c4bench.cli import Commands
from c4bench.errors import UsageError
from c4bench.record import RunDirectory
from c4bench.record.encoding import encode
from c4bench.report import evaluate_run, render
from c4bench.report.compare import Comparison, compare
from c4bench.report.markdown import comparison, summary

_BEST_FIRST = (0, 4, 1)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="evaluate run directories again and write their report.html")
    parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN_DIR", help="such as reports/runs/latest")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="print what differs between two runs, as Markdown; the exit code is 1 if something passed in the first "
        "and not in the second",
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="also append a summary to this file, such as that of a CI job ($GITHUB_STEP_SUMMARY)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print each run's verdict, or the comparison, as a line of JSON"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.compare:
        return _compare(arguments.run_directories, arguments.markdown, as_json=arguments.json)
    codes = [_evaluate(run, arguments.markdown, as_json=arguments.json) for run in arguments.run_directories]
    return max(codes, key=_BEST_FIRST.index)


def _evaluate(run_directory: Path, markdown: Path | None, *, as_json: bool) -> int:
    verdict, page = evaluate_run(run_directory), render(run_directory)
    if as_json:
        found = {"run": str(run_directory), "outcome": verdict.outcome, "report": str(page)}
        sys.stdout.write(encode(found | msgspec.to_builtins(verdict)).decode() + "\n")
    else:
        sys.stdout.write(f"{verdict.outcome}: {page}\n")
    if markdown:
        _append(markdown, summary(RunDirectory(run_directory), verdict))
    return verdict.exit_code


def _compare(runs: list[Path], markdown: Path | None, *, as_json: bool) -> int:
    if len(runs) != 2:
        raise UsageError(f"--compare needs two run directories, and got {len(runs)}")
    first, second = runs
    found = compare(evaluate_run(first), evaluate_run(second))
    text = comparison((first.resolve().name, second.resolve().name), found)
    sys.stdout.write(encode(_document(found)).decode() + "\n" if as_json else text)
    if markdown:
        _append(markdown, text)
    return int(found.worse)


def _document(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON: the outcomes of scenarios, and both values of measurements, null where a run has none."""
    scenarios = [{"scenario": name, "before": old, "after": new} for name, old, new in found.scenarios]
    measurements = [{"before": pair.before, "after": pair.after, "worse": pair.is_worse} for pair in found.pairs]
    return {"worse": found.worse, "same": found.same, "scenarios": scenarios, "measurements": measurements}


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"--markdown {path}: {error.strerror}") from None
