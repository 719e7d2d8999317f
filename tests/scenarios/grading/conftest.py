"""What trials of C4D ask of the fabric."""

import time

import pytest
from trial_verdict import drawn

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
def as_at_first(cluster):
    """Wait until a trial finds the fabric as the first trial of a lab does, whatever the ones before have broken.

    Their hosts are back, C4P uses every link again, and the clock is as far from the agents' next windows.
    """

    def wait(hosts):
        cluster.wait_hosts(hosts, BACK_S)
        cluster.wait_links(OPEN_S)
        time.sleep(-time.time() % WHOLE_S)

    return wait
