"""`python -m tools campaign RUN_DIR...`: how often C4D was right in campaigns, as it was live or judged again."""

import argparse
import sys
from pathlib import Path

import msgspec

from c4bench.c4d.detectors import C4D
from c4bench.cli import Commands
from c4bench.errors import UsageError
from c4bench.record import RunDirectory
from c4bench.record.encoding import encode
from tools.campaign.figures import Bin, Figures, Share, calibration, calibration_error, figures
from tools.campaign.grade import Answer, Grade
from tools.campaign.nights import night_seed, nights
from tools.campaign.nights_table import rewrite_campaigns, rewrite_nights
from tools.campaign.run_directory import graded

_NIGHTS = 30
_MISSES = (Answer.AMONG, Answer.WRONG, Answer.SILENT)


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "campaign",
        help="how often C4D named the one right component in recorded campaigns, and how well its confidence is "
        "calibrated (docs/campaign.md)",
    )
    parser.add_argument("run_directories", type=Path, nargs="*", metavar="RUN_DIR", help="each with a campaign.jsonl")
    parser.add_argument("--again", action="store_true", help="judge the recordings with the present C4D first")
    parser.add_argument("--detector", default=C4D, metavar="NAME", help="with --again: who judges them (default c4d)")
    parser.add_argument(
        "--nights", action="store_true", help=f"only runs of seeds that were drawn from a date, the last {_NIGHTS}"
    )
    parser.add_argument("--misses", type=Path, metavar="FILE", help="add trials that were not resolved to this list")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="with --nights: rewrite the nights' table in FILE")
    parser.add_argument(
        "--figures", type=Path, metavar="README", help="rewrite the figures of idle and busy jobs there and in docs"
    )
    parser.add_argument("--seed", action="store_true", help="only print the seed of tonight's campaign")
    parser.add_argument(
        "--by",
        choices=("run", "fault", "faults", "load"),
        default="run",
        help="a row for each run, each kind of fault, each number of faults at once, or each share of its time for "
        "which the job communicates",
    )
    parser.add_argument("--json", action="store_true", help="print the grade of each trial as a line of JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.seed:
        sys.stdout.write(f"{night_seed()}\n")
        return 0
    if arguments.readme and not arguments.nights:
        raise UsageError("--readme: its table is of nights; give --nights as well")
    runs = [RunDirectory(path) for path in arguments.run_directories]
    runs = nights(runs, _NIGHTS) if arguments.nights else runs
    if arguments.detector != C4D and not arguments.again:
        raise UsageError("--detector: who judged a campaign is settled; give --again as well")
    grades = {run: graded(run, again=arguments.again, detector=arguments.detector) for run in runs}
    every = [grade for of_run in grades.values() for grade in of_run]
    if not any(grade.due for grade in every):
        raise UsageError("no trial to count: give run directories of campaigns, such as reports/runs/accuracy/*")
    if arguments.json:
        sys.stdout.writelines(encode(grade).decode() + "\n" for grade in every)
    else:
        by_run = {run.path.name: of_run for run, of_run in grades.items()}
        groups = by_run if arguments.by == "run" else _grouped(every, arguments.by)
        rows = [(name, figures(group)) for name, group in groups.items() if any(one.due for one in group)]
        table = _table(arguments.by, [*rows, ("all", figures(every))])
        sys.stdout.write("\n".join([*table, "", *_bins(every), ""]))
    if arguments.readme:
        rewrite_nights(arguments.readme, figures(every), len(runs))
    if arguments.figures:
        rewrite_campaigns(arguments.figures, every)
    if arguments.misses:
        _keep(arguments.misses, every)
    return 0


def _grouped(grades: list[Grade], by: str) -> dict[str, list[Grade]]:
    """The grades by the value of one of their fields, in its order."""
    groups: dict[str, list[Grade]] = {}
    for one in sorted(grades, key=lambda grade: msgspec.to_builtins(grade)[by]):
        groups.setdefault(str(msgspec.to_builtins(one)[by]), []).append(one)
    return groups


def _table(by: str, rows: list[tuple[str, Figures]]) -> list[str]:
    head = (by, "trials", "resolved", "among", "wrong", "silent", "healthy isolated", "resolved after")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join((name, *_cells(found)))} |" for name, found in rows]


def _cells(found: Figures) -> tuple[str, ...]:
    shares = map(_share, (found.resolved, found.among, found.wrong, found.silent))
    after = "" if found.resolve_s is None else f"{found.resolve_s:.2f} s"
    return str(found.trials), *shares, str(found.healthy_components), after


def _share(share: Share) -> str:
    """`12 of 24, 0.291 to 0.709`."""
    return f"{share.trials} of {share.total}, {share.interval.low:.3f} to {share.interval.high:.3f}"


def _bins(grades: list[Grade]) -> list[str]:
    bins = calibration(grades)
    lines = ["| confidence stated | mean | findings | component right |", "|---|---|---|---|"]
    lines += [
        f"| {one.low:.1f} to {one.high:.1f} | {one.stated:.3f} | {one.findings} | {_right(one)} |" for one in bins
    ]
    return [*lines, "", f"Largest difference (calibration.error): {calibration_error(bins):.3f}"]


def _right(one: Bin) -> str:
    return f"{one.right.mean:.3f}, {one.right.low:.3f} to {one.right.high:.3f}"


def _keep(path: Path, grades: list[Grade]) -> None:
    """Add the misses to a list that has each trial once."""
    try:
        known = set(path.read_bytes().splitlines()) if path.exists() else set()
        lines = [
            encode({"trial": g.trial, "fault": g.fault, "answer": g.answer}) for g in grades if g.answer in _MISSES
        ]
        with path.open("ab") as file:
            file.writelines(line + b"\n" for line in dict.fromkeys(lines) if line not in known)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be written") from None
