"""Run suites into a run directory, one lab per stage."""

import sys
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from c4bench.bench import figures, suites
from c4bench.bench.figures import note
from c4bench.bench.suites import Case, LoadCase, Stage
from c4bench.errors import UnhealthyError
from c4bench.extensions import find
from c4bench.lab.machine import launch
from c4bench.lab.machine.run import LabRun
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory

SUITES: dict[str, Callable[[bool], list[Stage]]] = {
    "link": lambda quick: suites.link(quick=quick),
    "collectives": lambda quick: suites.collectives(quick=quick),
    "perftest": lambda quick: suites.perftest(quick=quick),
    "recorder": lambda quick: suites.recorder(quick=quick),
    "lab": lambda quick: suites.lab(quick=quick),
}


def check(names: Sequence[str]) -> None:
    """Raises UsageError for a name that no suite has."""
    for name in sorted(names):
        find(SUITES, "suite", name)


def run_suites(names: Sequence[str], run: RunDirectory, *, quick: bool, seed: int) -> None:
    """Run the named suites, or all; record every figure in `run` and print it.

    Raises UnhealthyError when a lab does not come up or a transfer in it fails.
    """
    chosen = [stages for name, stages in SUITES.items() if not names or name in names]
    for stage in suites.merged(chain.from_iterable(stages(quick) for stages in chosen)):
        _boot(stage, run, seed)


def _boot(stage: Stage, run: RunDirectory, seed: int) -> None:
    stage_file = run.path / "stage.json"
    stage_file.write_bytes(msgspec.json.encode(stage))
    command = [sys.executable, "-m", "c4bench.bench.in_lab", str(stage_file.resolve()), str(run.path.resolve())]
    trust = launch.trust_directory(run.path)
    # The overlay that a lab lays over the machine shows files as they were when it booted: the stage is written before.
    ended = launch.launch(
        stage.topology,
        [*command, f"--trust={trust}", f"--seed={seed}"],
        run.path,
        seed=seed,
        virtual=stage.virtual,
    )
    stage_file.unlink()
    if ended.exit_code:
        raise UnhealthyError(f"the bench in lab {stage.topology.name} ended with exit code {ended.exit_code}")
    for case in stage.cases:
        _measure_lab(stage, case, ended, run)


def _measure_lab(stage: Stage, case: Case, ended: LabRun, run: RunDirectory) -> None:
    """Record what a lab under load cost the machine."""
    if not isinstance(case, LoadCase):
        return
    hosts, load = len(stage.topology.hosts), case.load
    spent = figures.between(run) / case.seconds
    note(run, "lab", "lab.machine_s_per_virtual_s", spent, unit="s/s", clock=Clock.MACHINE, hosts=hosts, load=load)
    peak = ended.peak_memory_bytes
    note(run, "lab", "lab.peak_memory_bytes", peak, unit="B", clock=Clock.MACHINE, hosts=hosts, load=load)
