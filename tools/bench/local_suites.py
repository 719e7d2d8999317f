"""Suites without a lab: the cost of our own programs on this machine, each in its own process."""

import math
import subprocess
import sys
import tempfile
from typing import Protocol

import msgspec

from c4bench.bench.figures import note
from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory
from tools.bench import bus, detector_cost, fleet, instructions, intake, job_logs, planner, preloaded
from tools.bench.agents import measure_agent
from tools.bench.exercise import Reading

_SOAK = (1_000, 10_000)
_GROWTH_AT_MOST_BYTES = 256 << 10
_FLEET = 256
_COUNTED = {False: (100, 600), True: (50, 150)}  # operations, by: is it the quick form?


class Suite(Protocol):
    """Measures into a run. Raises UnhealthyError when what it measures fails."""

    def __call__(self, run: RunDirectory, *, quick: bool) -> None:
        """Measure; the quick form gives the same figures with more variance."""


def _count_instructions(run: RunDirectory, *, quick: bool) -> None:
    if not instructions.available():
        per_message = "recorder.instructions_per_message"
        note(run, "recorder", per_message, math.nan, clock=Clock.MACHINE, reason=instructions.MISSING)
        return
    counted = instructions.recorder_instructions(*_COUNTED[quick])
    note(run, "recorder", "recorder.instructions_per_message", counted.per_message, clock=Clock.MACHINE)
    note(run, "recorder", "recorder.instruction_fraction", counted.fraction, clock=Clock.MACHINE)


def _soak(run: RunDirectory, *, quick: bool) -> None:  # noqa: ARG001  (growth shows in the long form only)
    """Measure memory growth of ranks in a subprocess."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.exercise", *map(str, _SOAK)], capture_output=True, text=True, check=False
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


def _fleet(run: RunDirectory, *, quick: bool) -> None:  # noqa: ARG001  (it is asked of so many hosts)
    """Measure the largest supported inventory in a subprocess."""
    with tempfile.TemporaryDirectory(prefix="c4bench-fleet-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tools.bench.fleet", str(_FLEET), folder],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise UnhealthyError(f"the fleet failed: {' '.join(done.stderr.split()[-30:])}")
    reading = msgspec.json.decode(done.stdout, type=fleet.Reading)
    for name in ("doctor", "inventory", "plan", "report"):
        took = getattr(reading, f"{name}_s")
        note(run, "hosts", f"{name}.hosts_{_FLEET}_s", took, unit="s", clock=Clock.MACHINE)
    for whose in ("own", "hosts"):
        spent = getattr(reading, f"doctor_{whose}_cpu_s")
        note(run, "hosts", f"doctor.hosts_{_FLEET}_{whose}_cpu_s", spent, unit="s", clock=Clock.MACHINE)
    note(run, "hosts", f"hosts_{_FLEET}.peak_memory_bytes", reading.peak_bytes, unit="B", clock=Clock.MACHINE)


LOCAL_SUITES: dict[str, Suite] = {
    "recorder": _count_instructions,
    "memory": _soak,
    "agent": measure_agent,
    "hosts": _fleet,
    "detector": detector_cost.measure,
    "intake": intake.measure,
    "bus": bus.measure,
    "logs": job_logs.measure,
    "planner": planner.measure,
    "preloaded": preloaded.measure,
}
