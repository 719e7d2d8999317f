"""Run suites into a run directory, one lab per stage."""

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from c4bench.bench import marks, suites
from c4bench.bench.cases import Case, LoadCase, Stage
from c4bench.bench.notes import note
from c4bench.errors import UnhealthyError, UsageError
from c4bench.lab.machine import launch
from c4bench.lab.machine.run import LabRun
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory

SUITES = ("link", "collectives", "perftest", "recorder", "lab")
_CPUINFO = Path("/proc/cpuinfo")
_TICK_MHZ = 1000.0  # default if /proc/cpuinfo has none; perftest then measures it


def check(names: Sequence[str]) -> None:
    """Raises UsageError for a name that no suite has."""
    unknown = sorted(set(names) - set(SUITES))
    if unknown:
        raise UsageError(f"no suite {unknown[0]!r}: one of {', '.join(SUITES)}")


def run_suites(names: Sequence[str], run: RunDirectory, *, quick: bool, seed: int) -> None:
    """Run the named suites, or all; record every figure in `run` and print it.

    Raises UnhealthyError when a lab does not come up or a transfer in it fails.
    """
    chosen = names or SUITES
    stages = suites.merged(chain.from_iterable(_stages(name, quick=quick) for name in SUITES if name in chosen))
    for stage in stages:
        _boot(stage, run, seed)


def _stages(name: str, *, quick: bool) -> list[Stage]:
    match name:
        case "link":
            return suites.link(quick=quick)
        case "perftest":
            return suites.perftest(quick=quick, tick_mhz=tick_mhz(_CPUINFO.read_text()))
        case "collectives":
            return suites.collectives(quick=quick)
        case "recorder":
            return suites.recorder(quick=quick)
        case _:
            return suites.lab(quick=quick)


def tick_mhz(cpuinfo: str) -> float:
    """How fast the processor's time stamp counts, by the text of /proc/cpuinfo."""
    speeds = (line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("cpu MHz"))
    return float(next(speeds, _TICK_MHZ))


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
    spent = marks.between(run) / case.seconds
    note(run, "lab", "lab.machine_s_per_virtual_s", spent, unit="s/s", clock=Clock.MACHINE, hosts=hosts, load=load)
    peak = ended.peak_memory_bytes
    note(run, "lab", "lab.peak_memory_bytes", peak, unit="B", clock=Clock.MACHINE, hosts=hosts, load=load)
