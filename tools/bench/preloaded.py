"""What the preloaded libraries cost a program by each call, on the machine's clock, on devices that are none.

It is the difference between the same program's least times without and with a library.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from c4bench.attach import build
from c4bench.attach.environment import FAILOVER
from c4bench.bench.figures import note
from c4bench.errors import UnhealthyError
from c4bench.model.measurement import Clock
from c4bench.record import RunDirectory
from tools import fake_verbs

_BATCHES = {False: 50_000, True: 5_000}  # by: is it the quick form?


def measure(run: RunDirectory, *, quick: bool) -> None:
    """Measure into a run. Raises UnhealthyError where there is no compiler."""
    if why := fake_verbs.obstacle():
        raise UnhealthyError(f"the preloaded library cannot be measured: {why}")
    build.build()
    _compare(run, "attach", "fake_verbs.c", "cost.c", "verbs", _BATCHES[quick])
    _compare(run, "failover", "fabric.c", "failover_cost.c", "failover", _BATCHES[quick])


def _compare(run: RunDirectory, kind: str, verbs: str, program: str, library: str, batches: int) -> None:
    """Measure a program without and with a library, on a libibverbs of ours; both by the names of their sources."""
    with tempfile.TemporaryDirectory(prefix="c4bench-preloaded-") as folder:
        place = Path(folder)
        fake_verbs.compile_library(place, verbs)
        path = fake_verbs.compile_program(fake_verbs.HERE / program, place)
        plain = _nanoseconds(path, batches, {})
        own = {
            "LD_PRELOAD": str(build.library(library)),
            "C4BENCH_ATTACH_RECORDS": folder,
            FAILOVER: "nic0=nic1,nic2=nic3",
        }
        loaded = _nanoseconds(path, batches, own)
    for name, took_ns in loaded.items():
        note(run, "preloaded", f"{kind}.{name}_s", (took_ns - plain[name]) * 1e-9, unit="s", clock=Clock.MACHINE)


def _nanoseconds(program: Path, batches: int, environment: dict[str, str]) -> dict[str, float]:
    """The program's figures by name, ns a call."""
    own = os.environ | {"LD_LIBRARY_PATH": str(program.parent)} | environment
    done = subprocess.run([program, str(batches)], env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnhealthyError(f"{program.name} failed: {' '.join(done.stderr.split()[-30:])}")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}
