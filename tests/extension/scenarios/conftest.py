"""A fixture of a stranger's project."""

import pytest

from c4bench.workload.jobs import job


@pytest.fixture
def start(cluster, rdma_hosts):
    """Start a job of a program with a rank on each host, which ends with the scenario; return its name."""
    names = []

    def begin(program, hosts):
        names.append(f"stranger{len(names)}")
        cluster.results(cluster.start(job(names[-1], program, hosts, seed=1)), "ready", 60.0)
        return names[-1]

    yield begin
    for name in names:
        cluster.stop(name)
