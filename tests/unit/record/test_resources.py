import pytest

from c4bench import resources
from c4bench.errors import UsageError


def test_checkout_wins_over_the_packaged_copy(tmp_path, monkeypatch):
    """In a checkout the top-level file is used; in an installed package the copy under data."""
    package, checkout = tmp_path / "c4bench", tmp_path
    for root in (package / "data", checkout):
        (root / "faults").mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    monkeypatch.setattr(resources, "_CHECKOUT", checkout)
    assert resources.resource("faults") == package / "data" / "faults"
    (checkout / "pyproject.toml").touch()
    assert resources.resource("faults") == checkout / "faults"


def test_missing_data_says_what_to_do():
    """A data file that does not exist is a usage error that says what to do."""
    with pytest.raises(UsageError, match="nowhere is missing; install"):
        resources.resource("nowhere")
