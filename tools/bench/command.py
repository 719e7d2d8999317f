"""`python -m tools bench`: what the programs of the project cost on this machine."""

import argparse
import sys
from functools import partial
from pathlib import Path

from c4bench.cli import Commands
from c4bench.errors import UsageError
from c4bench.record import begin
from c4bench.report import evaluate_run, render
from tools.bench import intake
from tools.bench.local_suites import LOCAL_SUITES


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="measure what c4bench's own programs cost (docs/bench.md)")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(LOCAL_SUITES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, rates, hosts and rounds")
    parser.add_argument(
        "--run-dir", type=Path, help="the run directory to write (default: a new one under reports/runs)"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="CHECKOUT", help="suite intake: also measure the master of this checkout"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if unknown := sorted(set(arguments.suites) - set(LOCAL_SUITES)):
        raise UsageError(f"no suite {unknown[0]!r}: one of {', '.join(LOCAL_SUITES)}")
    if arguments.baseline and not (arguments.baseline / "c4bench/control/parts.py").exists():
        raise UsageError(f"--baseline {arguments.baseline}: there is no c4bench/control/parts.py; give a checkout")
    run = begin(
        arguments.run_dir,
        "bench",
        command=("python", "-m", "tools", *sys.argv[1:]),
        seed=0,
        backend="hosts",
        topology="",
        clock="machine",
    )
    suites = LOCAL_SUITES | {"intake": partial(intake.measure, baseline=arguments.baseline)}
    for name in arguments.suites or suites:
        suites[name](run, quick=arguments.quick)
    verdict = evaluate_run(run.path)
    sys.stdout.write(f"{verdict.outcome}: {render(run.path)}\n")
    return verdict.exit_code
