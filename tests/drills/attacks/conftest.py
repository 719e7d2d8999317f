"""What share of the attacks were refused."""

import pytest

from c4bench.model.measurement import Clock
from c4bench.record import Ledger

REFUSED = pytest.StashKey[dict[str, bool]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Keep, by test, whether what is marked as an attack was refused."""
    report = yield
    if item.get_closest_marker("attack") and (report.when == "call" or report.failed):
        refused = item.session.stash.setdefault(REFUSED, {})
        refused[item.nodeid] = report.passed and refused.get(item.nodeid, True)
    return report


@pytest.fixture(scope="session", autouse=True)
def refused_fraction(drills, request):
    """Record, after all attacks of this session, the share that was refused; a skipped attack is not counted."""
    yield
    refused = request.session.stash.get(REFUSED, {})
    if refused:
        fraction = sum(refused.values()) / len(refused)
        Ledger(drills, "attacks").measure(
            "attack.refused_fraction", fraction, "1", equals=1, clock=Clock.NONE, attacks=len(refused)
        )
