"""The libraries as set-up builds them."""

import shutil

import pytest

from c4bench.attach.native_build import MPI, NCCL_PROFILER, compile_library


def _compiled(library, factory):
    if shutil.which("gcc") is None:
        pytest.skip(f"gcc is missing, which compiles {library.name}")
    return compile_library(library, factory.mktemp("native"))


@pytest.fixture(scope="session")
def nccl_plugin(tmp_path_factory):
    """NCCL's profiler plugin, compiled."""
    return _compiled(NCCL_PROFILER, tmp_path_factory)


@pytest.fixture(scope="session")
def mpi_library(tmp_path_factory):
    """The library for MPI programs, compiled."""
    return _compiled(MPI, tmp_path_factory)
