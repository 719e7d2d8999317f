"""A job of ranks that are threads."""

import pytest
from world import World


@pytest.fixture
def world(tmp_path):
    job = []

    def make(size, nics=1, **options):
        folder = tmp_path / str(len(job))
        folder.mkdir()
        job.append(World(folder, size, nics, **options))
        return job[-1]

    yield make
    for item in job:
        item.close()
