import pytest
from held_faults import make_place


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A rank that exists only as its controls, and a journal."""
    return make_place(tmp_path, monkeypatch)
