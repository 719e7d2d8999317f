"""`c4bench nightly`: run the scenarios, report what got worse and since when, and keep the last nights."""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from c4bench.cli import Commands
from c4bench.errors import InconclusiveError, UnhealthyError, UsageError
from c4bench.foreign_text import markdown, one_line
from c4bench.model.measurement import Outcome
from c4bench.record import RunDirectory
from c4bench.record.encoding import encode
from c4bench.record.run import ROOT, point
from c4bench.report import Verdict, conclude, evaluate_run, render
from c4bench.report.headlines import short
from c4bench.report.nights import NIGHT, NIGHTS_AT_LEAST, Comparison, compare, nights, prune, read

_BASELINE = "baseline"
_SHOWN = 20
_LONGEST = 1000


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("nightly", help="run the scenarios and compare with earlier nights")
    parser.add_argument(
        "--hosts", required=True, metavar="INVENTORY|softroce", help="an Ansible inventory, or the embedded lab"
    )
    parser.add_argument(
        "--runs", type=Path, default=ROOT, metavar="FOLDER", help=f"where the nights are kept (default {ROOT})"
    )
    parser.add_argument("--keep", type=int, default=30, metavar="NUMBER", help="how many nights to keep (default 30)")
    parser.add_argument("--accept", action="store_true", help="make tonight the baseline, if it passes")
    parser.add_argument(
        "--json", action="store_true", help="print the comparison as JSON instead of the page; pytest prints to stderr"
    )
    parser.add_argument(
        "pytest",
        nargs="*",
        default=["tests/scenarios"],
        metavar="ARGUMENT",
        help="pytest's own arguments, after -- (default tests/scenarios)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    root: Path = arguments.runs
    if arguments.keep < 1:
        raise UsageError("--keep: at least one night must be kept; give 1 or more")
    before = nights(root)[-arguments.keep :]
    run = RunDirectory.create(root, NIGHT)
    command = [sys.executable, "-m", "pytest", f"--hosts={arguments.hosts}", f"--c4-run-dir={run.path}"]
    shown = sys.stderr if arguments.json else None
    ended = subprocess.run([*command, *arguments.pytest], stdout=shown, check=False).returncode
    if not run.started:
        run.path.rmdir()  # nothing has run: an argument was wrong, or asked for no test
        return ended or InconclusiveError.exit_code
    ended = conclude(run, ended)
    verdict = evaluate_run(run.path)
    render(run.path)
    baseline = (root / _BASELINE).resolve() if (root / _BASELINE).exists() else None
    comparison = compare(read(run.path), [read(path) for path in before], read(baseline) if baseline else None)
    code = _exit_code(ended, verdict, comparison)
    page = partial(_page, run.path, ended, verdict, comparison)
    (run.path / "night.md").write_text(page(markdown))
    run.save("night", comparison)
    sys.stdout.write(_json(run.path, code, verdict, comparison) if arguments.json else page(one_line))
    if arguments.accept and code == 0:
        point(root / _BASELINE, run.path.name)
        baseline = run.path
    for path in prune(root, arguments.keep, [baseline] if baseline else []):
        shutil.rmtree(path)
    return code


def _json(path: Path, code: int, verdict: Verdict, comparison: Comparison) -> str:
    found = {
        "run": str(path),
        "exit_code": code,
        "outcome": verdict.outcome,
        "scenarios": verdict.scenario_counts,
        "comparison": msgspec.to_builtins(comparison),
    }
    return encode(found).decode() + "\n"


def _exit_code(ended: int, verdict: Verdict, comparison: Comparison) -> int:
    """Pytest's exit code if it could not run the tests; 1 if something failed or got worse; else the verdict's.

    A night that ran fewer scenarios than the one before is inconclusive at best.
    """
    if ended not in {0, 1, InconclusiveError.exit_code}:
        return ended
    if comparison.of("worse"):
        return 1
    return verdict.exit_code or (InconclusiveError.exit_code if comparison.not_run else 0)


def _page(path: Path, ended: int, verdict: Verdict, comparison: Comparison, shown: Callable[[object, int], str]) -> str:
    """One page, with the most urgent results first; `shown` writes a line of a run for a terminal or as Markdown."""
    section = partial(_list, shown)
    missed = [item for item in (*verdict.measurements, *verdict.timings) if item.outcome is Outcome.FAIL]
    failed = verdict.not_passed
    skipped = verdict.scenario_counts.get(Outcome.SKIP, 0)
    needed = "" if comparison.nights >= NIGHTS_AT_LEAST else f" of the {NIGHTS_AT_LEAST} that are needed"
    lines = [
        f"# {path.name}: {_headline(ended, verdict, comparison)}",
        "",
        f"{len(verdict.scenarios)} scenarios, {len(failed)} did not pass, {skipped} were skipped; "
        f"{len(missed)} figures missed their limits; "
        f"{comparison.compared} figures compared with {comparison.nights} nights{needed}.",
    ]
    run = RunDirectory(path)
    lines += section("Without these hosts", [f"{host}: {reason}" for host, reason in run.lost_hosts().items()])
    lines += section("Nights not compared", list(comparison.apart))
    lines += section("Worse", [str(change) for change in comparison.of("worse")])
    lines += section("Did not pass", [f"{one.scenario}: {one.reason or one.outcome}" for one in failed])
    lines += section("Skipped", [f"{count} scenarios: {reason}" for reason, count in verdict.skips.items()])
    lines += section("Ran last night, not tonight", [short(scenario) for scenario in comparison.not_run])
    lines += section("Not measured tonight", list(comparison.lost))
    lines += section("Changed", [str(change) for change in comparison.of("changed")])
    lines += section("Better", [str(change) for change in comparison.of("better")])
    return "\n".join([*lines, "", f"Report: {path / 'report.html'}", ""])


def _headline(ended: int, verdict: Verdict, comparison: Comparison) -> str:
    if ended == UnhealthyError.exit_code:
        return "hosts or lab unhealthy"
    if ended not in {0, 1, InconclusiveError.exit_code}:
        return f"pytest ended with {ended}"
    outcome = Outcome.INCONCLUSIVE if verdict.outcome is Outcome.PASS and comparison.not_run else verdict.outcome
    return f"{outcome}, {len(comparison.of('worse'))} worse"


def _list(shown: Callable[[object, int], str], title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    more = [f"- and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return ["", f"## {title}", "", *(f"- {shown(line, _LONGEST)}" for line in lines[:_SHOWN]), *more]
