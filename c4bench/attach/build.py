"""The libraries that are preloaded into programs of others: compiled by set-up, for this Python's environment.

They lie in the environment, so that a lab sees them under the same path on every machine. A library's name has a digest
of what it was compiled from: one of other sources counts as missing.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from c4bench.errors import UnhealthyError

_NATIVE = Path(__file__).with_name("native")
# By library: its sources. `lab` lets programs that wait without sleeping move a lab's virtual time; `nccl` is NCCL's
# profiler plugin, `mpi` wraps MPI's collectives.
LIBRARIES = {
    "verbs": (
        "real.c",
        "say.c",
        "table.c",
        "slot.c",
        "record_file.c",
        "telemetry_file.c",
        "ring.c",
        "bias.c",
        "device.c",
        "qp.c",
        "publish.c",
        "traffic.c",
        "hooks.c",
        "extended.c",
        "requests.c",
        "agent.c",
        "modify.c",
        "lookup.c",
    ),
    "lab": ("real.c", "lab/idle.c", "lab/spins.c"),
    "nccl": ("nccl_profiler.c", "telemetry_file.c", "record_file.c", "slot.c", "say.c"),
    "mpi": ("mpi.c", "telemetry_file.c", "record_file.c", "slot.c", "say.c"),
}
# Without a stack protector, so that dlsym ends in a tail call (lookup.c); without vector registers, whose wide loads
# wait for counters that were just stored (Intel's optimization manual, "Store Forwarding").
_COMPILER = (
    *("gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O3", "-flto", "-mgeneral-regs-only", "-fno-stack-protector"),
    *("-fPIC", "-shared"),
)
_WARNINGS = ("-Wall", "-Wextra", "-Werror")
_PLACE = Path(sys.prefix, "lib", "c4bench")
_VIRTUAL_TIME = "time-travel=inf-cpu"  # on the command line of a lab's kernel


def library(name: str) -> Path:
    """The built library of this name. Raises UnhealthyError where set-up has not built it."""
    path = _path(name)
    if not path.exists():
        raise UnhealthyError(f"the library that programs get preloaded ({name}) is not built: run `c4bench setup`")
    return path


def libraries() -> tuple[Path, ...]:
    """What a program gets preloaded here, in this order. Raises UnhealthyError where set-up has not built it."""
    return tuple(library(name) for name in (*(("lab",) if in_virtual_time() else ()), "verbs", "mpi"))


def profiler() -> Path:
    """NCCL's profiler plugin. Raises UnhealthyError where set-up has not built it."""
    return library("nccl")


def in_virtual_time() -> bool:
    """Whether this process runs in a lab whose clock moves only while processes sleep."""
    return _VIRTUAL_TIME in Path("/proc/cmdline").read_text().split()


def build() -> tuple[Path, ...]:
    """Compile the libraries that are missing; returns all. Raises UnhealthyError with the compiler's first error."""
    for name in LIBRARIES:
        if not _path(name).exists():
            _compile(name, _path(name))
    return tuple(map(_path, LIBRARIES))


def _compile(name: str, path: Path) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = [*_COMPILER, *_WARNINGS, "-o", str(unfinished), *LIBRARIES[name]]
        done = subprocess.run(argv, cwd=_NATIVE, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
            raise UnhealthyError(f"{argv[0]} does not compile {name}: {said[0]}; install gcc and libibverbs-dev")
        unfinished.rename(path)
    except OSError as error:
        raise UnhealthyError(f"{path}: {error.strerror}; install gcc, and c4bench into a virtual environment") from None
    for other in path.parent.glob(f"{name}-*.so"):
        if other != path:
            other.unlink(missing_ok=True)


def _path(name: str) -> Path:
    return _PLACE / f"{name}-{_digest()}.so"


def _digest() -> str:
    """A digest of all sources and of how they are compiled."""
    digest = hashlib.sha256(" ".join((*_COMPILER, *_WARNINGS)).encode())
    for path in sorted(_NATIVE.rglob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
