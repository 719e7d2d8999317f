"""Real files of PyTorch and NCCL, made by the scripts `make*.py` in tests/evidence_fixtures."""

import tarfile
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "evidence_fixtures"


@pytest.fixture(scope="session")
def torch_dumps(tmp_path_factory):
    """A folder for each version of PyTorch, with a folder for each case, on gloo."""
    return unpacked("torch", tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="session")
def parallel_dumps(tmp_path_factory):
    """A folder for each job in tensor, pipeline and data groups whose ranks run ahead, on gloo."""
    return unpacked("parallel", tmp_path_factory.mktemp("parallel")) / "parallel-2.13.0"


@pytest.fixture(scope="session")
def nccl_files(tmp_path_factory):
    """A folder for each version of NCCL, with a folder for each case."""
    return unpacked("nccl", tmp_path_factory.mktemp("nccl"))


def unpacked(name, top):
    """The files of the archives of this name."""
    for archive in sorted(FIXTURES.glob(f"{name}-*.tar.xz")):
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile():
                    path = top / member.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(packed.extractfile(member).read())
    return top
