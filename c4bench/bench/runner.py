"""From the machine's side: run suites into a run directory, a lab for each stage."""

import math
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from c4bench.bench import instructions, marks, planner, suites
from c4bench.bench.cases import Case, LoadCase, Stage
from c4bench.bench.exercise import Reading
from c4bench.bench.notes import note
from c4bench.errors import UnhealthyError, UsageError
from c4bench.lab.machine import launch
from c4bench.lab.machine.run import LabRun
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory

SUITES = ("link", "collectives", "perftest", "recorder", "memory", "planner", "lab")
_CPUINFO = Path("/proc/cpuinfo")
_TICK_MHZ = 1000.0  # where the machine does not say; perftest then goes by what it measures itself
_SOAK = (1_000, 10_000)
_GROWTH_AT_MOST_BYTES = 256 << 10
_COUNTED = {False: (100, 600), True: (50, 150)}  # operations, by: is it the quick form?


def check(names: Sequence[str]) -> None:
    """Raises UsageError for a name that no suite has."""
    unknown = sorted(set(names) - set(SUITES))
    if unknown:
        raise UsageError(f"no suite {unknown[0]!r}: one of {', '.join(SUITES)}")


def run_suites(names: Sequence[str], run: RunDirectory, *, quick: bool, seed: int) -> None:
    """Run suites by name, all without a name, and write every figure into `run`, said as it is taken.

    Raises UnhealthyError when a lab does not come up or a transfer in it fails.
    """
    chosen = names or SUITES
    stages = suites.merged(chain.from_iterable(_stages(name, quick=quick) for name in SUITES if name in chosen))
    if "recorder" in chosen:
        _count_instructions(run, quick=quick)
    if "memory" in chosen:
        _soak(run)
    if "planner" in chosen:
        planner.measure(run, quick=quick)
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
        case "lab":
            return suites.lab(quick=quick)
        case _:
            return []


def tick_mhz(cpuinfo: str) -> float:
    """How fast the processor's time stamp counts, by the text of /proc/cpuinfo."""
    said = (line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("cpu MHz"))
    return float(next(said, _TICK_MHZ))


def _boot(stage: Stage, run: RunDirectory, seed: int) -> None:
    told = run.path / "stage.json"
    told.write_bytes(msgspec.json.encode(stage))
    command = [sys.executable, "-m", "c4bench.bench.inside", str(told.resolve()), str(run.path.resolve())]
    trust = launch.trust_directory(run.path)
    # The overlay that a lab lays over the machine shows files as they were when it booted: the stage is written before.
    ended = launch.launch(
        stage.topology,
        [*command, f"--trust={trust}", f"--seed={seed}"],
        run.path,
        seed=seed,
        virtual=stage.virtual,
    )
    told.unlink()
    if ended.exit_code:
        raise UnhealthyError(f"the bench in lab {stage.topology.name} ended with exit code {ended.exit_code}")
    for case in stage.cases:
        _measure_lab(stage, case, ended, run)


def _measure_lab(stage: Stage, case: Case, ended: LabRun, run: RunDirectory) -> None:
    """What a lab under load cost the machine."""
    if not isinstance(case, LoadCase):
        return
    hosts, load = stage.topology.hosts.count, case.load
    spent = marks.between(run) / case.seconds
    note(run, "lab", "lab.machine_s_per_virtual_s", spent, unit="s/s", clock=Clock.MACHINE, hosts=hosts, load=load)
    held = ended.peak_memory_bytes
    note(run, "lab", "lab.peak_memory_bytes", held, unit="B", clock=Clock.MACHINE, hosts=hosts, load=load)


def _count_instructions(run: RunDirectory, *, quick: bool) -> None:
    if not instructions.available():
        per_message = "recorder.instructions_per_message"
        note(run, "recorder", per_message, math.nan, clock=Clock.MACHINE, reason=instructions.MISSING)
        return
    found = instructions.recorder_instructions(*_COUNTED[quick])
    note(run, "recorder", "recorder.instructions_per_message", found.per_message, clock=Clock.MACHINE)
    note(run, "recorder", "recorder.instruction_fraction", found.fraction, clock=Clock.MACHINE)


def _soak(run: RunDirectory) -> None:
    """Ranks in a process of their own, so that it is their memory which is read."""
    done = subprocess.run(
        [sys.executable, "-m", "c4bench.bench.exercise", *map(str, _SOAK)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnhealthyError(f"the soak failed: {' '.join(done.stderr.split()[-30:])}")
    first, last = (msgspec.json.decode(line, type=Reading).resident_bytes for line in done.stdout.splitlines())
    note(
        run,
        "memory",
        "collective.memory_growth_bytes",
        last - first,
        unit="B",
        clock=Clock.MACHINE,
        at_most=_GROWTH_AT_MOST_BYTES,
        operations=_SOAK[1],
    )
