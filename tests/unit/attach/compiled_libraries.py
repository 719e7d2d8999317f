"""The libraries for programs of NCCL and MPI, compiled."""

import shutil
from pathlib import Path

import pytest

from c4bench.attach.native_build import Library, compile_library


def compiled(library: Library, factory: pytest.TempPathFactory) -> Path:
    """A library's path; skips the test where no compiler is."""
    if shutil.which("gcc") is None:
        pytest.skip(f"gcc is missing, which compiles {library.name}")
    return compile_library(library, factory.mktemp("native"))
