"""A libibverbs with one device that carries nothing, and a program that measures what watching costs on it."""

import shutil
import subprocess
from pathlib import Path

from c4bench.errors import UnhealthyError

HERE = Path(__file__).parent
_HEADER = Path("/usr/include/infiniband/verbs.h")
_COMPILER = ("gcc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{HERE}")
_SHARED = ("-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={HERE / 'fake_verbs.map'}")


def obstacle() -> str:
    """Why it cannot be compiled here; empty where it can."""
    return "" if shutil.which("gcc") and _HEADER.exists() else "install gcc and libibverbs-dev"


def compile_library(place: Path, source: str = "fake_verbs.c") -> Path:
    """Compile the libibverbs of a source into the folder `place`. Raises UnhealthyError.

    `fabric.c` has NICs that carry requests between the queue pairs of a process.
    """
    library = place / "libibverbs.so.1"
    _compile([*_SHARED, "-o", str(library), str(HERE / source)])
    return library


def compile_program(source: Path, place: Path, *, linked: bool = True) -> Path:
    """Compile a program for it into the folder `place`, which has the library. Raises UnhealthyError."""
    program = place / source.stem
    _compile(["-o", str(program), str(source), *([str(place / "libibverbs.so.1")] if linked else [])])
    return program


def _compile(words: list[str]) -> None:
    done = subprocess.run([*_COMPILER, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnhealthyError(f"gcc {words[-1]}: {' '.join(done.stderr.split()[:40])}")
