"""Compiles the libraries of `native/`, which run in programs of others."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UsageError

NATIVE = Path(__file__).parent / "native"
# Without vector registers, whose wide loads wait for counters that were just stored (Intel's optimization manual,
# "Store Forwarding").
_COMPILE = (
    *("gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-O3", "-flto", "-mgeneral-regs-only", "-fPIC", "-shared"),
    *("-Wall", "-Wextra", "-Werror"),
)
_SHARED = ("telemetry_file.c", "slot.c", "say.c")


class Library(NamedTuple):
    """A library's file name, and what it is compiled from."""

    name: str
    sources: tuple[str, ...]


NCCL_PROFILER = Library("libnccl-profiler-c4bench.so", ("nccl_profiler.c", *_SHARED))
MPI = Library("libc4bench-mpi.so", ("mpi.c", *_SHARED))


def compile_library(library: Library, folder: Path) -> Path:
    """Compile a library into `folder`; returns its path. Raises UsageError."""
    path = folder / library.name
    command = [*_COMPILE, "-o", str(path), *(str(NATIVE / source) for source in library.sources)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError(f"gcc is missing, which compiles {library.name}; install it") from None
    except subprocess.CalledProcessError as error:
        reason = next(iter(error.stderr.splitlines()), "gcc failed")
        raise UsageError(f"{path} cannot be compiled: {reason}; install gcc and libc6-dev") from None
    return path
