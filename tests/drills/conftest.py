"""What a drill of the harness ends with, whether the hosts are as they were; and a host that many drills share."""

import pytest
from operator_host import operated

from c4bench.model.measurement import Clock, Outcome
from c4bench.record import Ledger, begin


@pytest.fixture(scope="session")
def drills(request):
    """The run directory of these drills."""
    given = request.config.option.c4_run_dir
    return begin(given, "drills", command=("pytest",), seed=0, backend="namespaces", topology="", clock="machine")


@pytest.fixture
def clean(drills, request):
    """`clean(was, how)`: record that the hosts were as before after a drill, and fail where they were not."""
    ledger = Ledger(drills, request.node.nodeid)

    def say(was, how):
        taken = ledger.measure("hosts.clean_after_drill_fraction", float(was), "1", equals=1, clock=Clock.NONE, how=how)
        assert taken.outcome is Outcome.PASS, f"{how}: something is left"

    return say


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """A host with the agent on it, and an operator who is not root. Each drill leaves it as it was."""
    with operated(tmp_path_factory.mktemp("operated")) as host:
        yield host
