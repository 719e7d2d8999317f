"""Real dumps of PyTorch, made by tests/evidence_fixtures/make.py."""

import tarfile
from pathlib import Path

import pytest

ARCHIVES = sorted((Path(__file__).parents[2] / "evidence_fixtures").glob("torch-*.tar.xz"))


@pytest.fixture(scope="session")
def torch_dumps(tmp_path_factory):
    """A folder for each version of PyTorch, with a folder for each case."""
    top = tmp_path_factory.mktemp("dumps")
    for archive in ARCHIVES:
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile():
                    path = top / member.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(packed.extractfile(member).read())
    return top
