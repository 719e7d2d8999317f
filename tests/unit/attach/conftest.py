"""The plugin as set-up builds it."""

import shutil

import pytest

from c4bench.attach.nccl import build_plugin


@pytest.fixture(scope="session")
def nccl_plugin(tmp_path_factory):
    """NCCL's profiler plugin, compiled."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing, which compiles NCCL's profiler plugin")
    return build_plugin(tmp_path_factory.mktemp("plugin"))
