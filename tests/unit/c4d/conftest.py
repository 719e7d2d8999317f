"""The long soak is for the night: it runs where somebody asks for it by its marker."""

from pathlib import Path


def pytest_collection_modifyitems(config, items):
    """Leave out this folder's nightly tests unless markers are chosen."""
    if config.option.markexpr:
        return
    here = Path(__file__).parent
    nightly = [item for item in items if here in item.path.parents and item.get_closest_marker("nightly")]
    items[:] = [item for item in items if item not in nightly]
    config.hook.pytest_deselected(items=nightly)
