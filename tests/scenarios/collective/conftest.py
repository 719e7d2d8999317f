"""Fixtures: ranks that run collectives."""

from contextlib import ExitStack, closing

import pytest
from crew import Crew

from c4bench.workload.jobs import job, place


@pytest.fixture(scope="module")
def crews(cluster, pytestconfig):
    """The crew on given hosts, which works through all cases of a module; another one when ranks of it are gone."""
    made = {}
    with ExitStack() as undo:

        def crew_on(hosts):
            if hosts not in made or made[hosts].lost:
                spec = job(f"crew{len(made)}", "collectives", place(hosts), seed=pytestconfig.option.c4_seed)
                made[hosts] = undo.enter_context(closing(Crew(cluster, spec)))
            return made[hosts]

        yield crew_on


@pytest.fixture
def crew(request, crews, rdma_hosts):
    """One rank on each of as many hosts as the scenario needs, neighbours across the fabric."""
    return crews(rdma_hosts[: request.node.get_closest_marker("needs").kwargs["hosts"]])
