"""`c4bench bench`: measure throughput and cost of the data plane and the lab."""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from c4bench.bench.runner import SUITES, check, run_suites
from c4bench.cli import Commands
from c4bench.lab.machine import kernel
from c4bench.lab.machine.modes import lab_mode
from c4bench.record import RunDirectory, begin
from c4bench.record.encoding import encode
from c4bench.report import evaluate_run, render


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="measure the data plane and the lab (docs/bench.md)")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, rates, hosts and rounds")
    parser.add_argument(
        "--json", action="store_true", help="measurements as JSON (reports/schema/measurement.schema.json)"
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="RUN_DIR",
        help="the run directory to write (default: a new one under reports/runs)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="NUMBER", help="of what is drawn (default 1)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        run = _measure(arguments)
        verdict = evaluate_run(run.path)
        sys.stdout.write(f"{verdict.outcome}: {render(run.path)}\n")
    if arguments.json:
        sys.stdout.write(encode([*verdict.measurements, *verdict.timings]).decode() + "\n")
    return verdict.exit_code


def _measure(arguments: argparse.Namespace) -> RunDirectory:
    check(arguments.suites)
    built = kernel.require()
    run = begin(
        arguments.run_dir,
        "bench",
        command=("c4bench", *sys.argv[1:]),
        seed=arguments.seed,
        backend="softroce",
        topology="",
        clock="",
        kernel=built.version,
        kernel_build=built.build,
        lab_mode=lab_mode(),
    )
    run_suites(arguments.suites, run, quick=arguments.quick, seed=arguments.seed)
    return run
