"""What simulations of the night share: they run where their marker is asked for, and leave a run directory."""

from pathlib import Path

import pytest
from c4d_campaign import graph

from c4bench.record import begin
from c4bench.record.encoding import encode
from tools.campaign.trial_record import FILE


@pytest.fixture(scope="module")
def simulated(pytestconfig):
    """Add simulated trials to the run directory, where `python -m tools campaign` counts them."""
    option = pytestconfig.option
    words = {"command": ("pytest",), "seed": option.c4_seed, "backend": "simulator", "topology": "", "clock": "virtual"}
    run = begin(option.c4_run_dir, "simulated", **words)
    run.save("campaign_fabric", graph())

    def add(trials):
        with (run.path / FILE).open("ab") as file:
            file.writelines(encode(one) + b"\n" for one in trials)

    return add


def pytest_collection_modifyitems(config, items):
    """Leave out this folder's nightly tests unless markers are chosen."""
    if config.option.markexpr:
        return
    here = Path(__file__).parent
    nightly = [item for item in items if here in item.path.parents and item.get_closest_marker("nightly")]
    items[:] = [item for item in items if item not in nightly]
    config.hook.pytest_deselected(items=nightly)
