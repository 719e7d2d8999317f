"""How many commands of the documents ran: recorded where the run has a directory (`make commands`)."""

import pytest

from c4bench.model.measurement import Clock
from c4bench.record import Ledger, RunDirectory


@pytest.fixture(scope="session")
def commands_run(pytestconfig):
    """The commands that ran and printed what the documents show, so far; their number is recorded at the end."""
    ran = []
    yield ran
    if pytestconfig.option.hosts:
        ledger = Ledger(RunDirectory(pytestconfig.option.c4_run_dir), "documents")
        ledger.measure("docs.commands_run", len(ran), "1", clock=Clock.NONE, pages=len({page for page, _ in ran}))
