"""A job of ranks that are threads."""

import pytest
from world import World


@pytest.fixture
def world(tmp_path):
    made = []

    def make(size, nics=1, **options):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(World(folder, size, nics, **options))
        return made[-1]

    yield make
    for item in made:
        item.close()
