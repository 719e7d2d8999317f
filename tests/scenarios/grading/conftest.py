"""What trials of C4D ask of the fabric."""

import time

import pytest
from campaign import CATALOGUE
from trial_verdict import drawn

from c4bench import remote
from c4bench.errors import UnhealthyError
from c4bench.inject import places
from c4bench.inject.controller import Injector
from c4bench.model.measurement import Clock
from c4bench.pytest_plugin.fixtures import obstacle
from c4bench.pytest_plugin.scope import FAULT, no_fault
from tools.campaign.measurable import Measurable

BACK_S = 30.0
# A link that C4D has blamed is used again after a minute.
OPEN_S = 90.0
WHOLE_S = 1.0


@pytest.fixture
def fabric(ports, rdma_hosts, run_directory):
    """What the graph lets the master measure; the run directory keeps the graph."""
    graph = drawn(ports, rdma_hosts)
    run_directory.save("campaign_fabric", graph)
    return Measurable(graph)


@pytest.fixture
def drawable(possible_faults, pytestconfig, measure):
    """The faults that a campaign may draw here; those that it leaves out are recorded, and none may be required."""
    left_out = possible_faults.left_out(sorted(CATALOGUE))
    for name, why in left_out.items():
        measure("campaign.left_out", 1, clock=Clock.NONE, fault=name, why=why)
    if required := {name: why for name, why in left_out.items() if f"{FAULT}{name}" in pytestconfig.option.c4_require}:
        pytest.skip(no_fault(required))
    return [name for name in CATALOGUE if name not in left_out]


@pytest.fixture
def directed(possible_faults, inventory):
    """A trial with a direction that its place, in words, can have: the one drawn, else one of the others."""
    injector = Injector(
        connect=lambda host: remote.connect(host, inventory.access[host]),
        python=lambda host: inventory.access[host].python,
        hosts=inventory.hosts,
    )

    def choose(trial, where):
        if "direction" not in trial.parameters:
            return trial
        drawn, target, why = trial.parameters["direction"], places.parse(where, inventory), ""
        for direction in sorted(CATALOGUE[trial.fault].parameters["direction"].choices, key=lambda one: one != drawn):
            parameters = trial.parameters | {"direction": direction}
            why = obstacle(injector, possible_faults, trial.fault, target, parameters)
            if not why:
                return trial._replace(parameters=parameters)
        raise UnhealthyError(f"{where}: {why}")

    return choose


@pytest.fixture
def as_at_first(cluster):
    """Wait until a trial finds the fabric as the first trial of a lab does, whatever the ones before have broken.

    Their hosts are back, C4P uses every link again, and the clock is as far from the agents' next windows.
    """

    def wait(hosts):
        cluster.wait_hosts(hosts, BACK_S)
        cluster.wait_links(OPEN_S)
        time.sleep(-time.time() % WHOLE_S)

    return wait
