"""The libraries for programs of NCCL and MPI, compiled."""

import shutil
from pathlib import Path

import pytest

from c4bench.attach import build


def compiled(name: str) -> Path:
    """A library's path; skips the test where no compiler is."""
    if shutil.which("gcc") is None:
        pytest.skip("no-compiler: gcc is missing; apt-get install gcc")
    build.build()
    return build.library(name)
