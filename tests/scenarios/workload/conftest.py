"""Jobs of Streaming DiLoCo on topologies with sites."""

import itertools
import time

import pytest

from c4bench.workload.jobs import job

STARTED_S = 120.0


class Training:
    """A running `diloco` job: what its ranks report."""

    def __init__(self, cluster, spec):
        self._cluster, self.spec = cluster, spec
        self._running, self.runs = cluster.start(spec), True

    def wait(self, kind, timeout_s, count=None):
        """`count` results of that kind, one of every rank by default."""
        count = count or len(self.spec.members)
        return self._cluster._wait(self._running.wait(kind, count, timeout_s))

    def until(self, kind, count, timeout_s):
        """As `wait`, whichever ranks are lost meanwhile."""
        deadline_s = time.monotonic() + timeout_s
        while len(found := self.reports(kind)) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} of {count} {kind!r} reports"
            time.sleep(0.1)
        return found

    def stop(self):
        """End the job."""
        self.runs = False
        self._cluster.stop(self.spec.id)

    def reports(self, kind):
        """What has been reported so far."""
        return [
            result.body | {"rank": result.rank} for result in list(self._running.results) if result.body["kind"] == kind
        ]

    def losses(self):
        """The losses of the first site by step, from 0."""
        return {
            report["first"] + index: float.fromhex(loss)
            for report in self.reports("losses")
            for index, loss in enumerate(report["losses"])
        }


@pytest.fixture
def two_sites(inventory):
    """Skip where the fabric has fewer than two sites."""
    _need_sites(inventory, 2)


@pytest.fixture
def four_sites(inventory):
    """Skip where the fabric has fewer than four sites."""
    _need_sites(inventory, 4)


def _need_sites(inventory, count):
    """Each site of a topology has one border switch, which the long link leads to."""
    sites = sum(switch.startswith("border") for switch in inventory.switches)
    if sites < count:
        pytest.skip(f"no-sites: this fabric has no {count} sites; try --c4-topology sites-{count}")


@pytest.fixture
def train(request, cluster, rdma_hosts, run_directory, pytestconfig):
    """Start a job: `train(sites=2, workers=2, steps=100, ...)`; hosts of one site follow each other."""
    started, numbers = [], itertools.count()

    def start(sites, workers, *, sited, **parameters):
        """`sited` is how many hosts each site of the topology has."""
        hosts = [rdma_hosts[site * sited + worker] for site in range(sites) for worker in range(workers)]
        ranks = [list(range(site * workers, (site + 1) * workers)) for site in range(sites)]
        name = f"{request.node.name}-{next(numbers)}"
        seed = parameters.pop("seed", pytestconfig.option.c4_seed)
        started.append(Training(cluster, job(name, "diloco", hosts, seed=seed, sites=ranks, **parameters)))
        started[-1].wait("ready", STARTED_S)
        return started[-1]

    yield start
    for training in started:
        if training.runs:
            run_directory.save_telemetry(training.spec.id, cluster.recording(training.spec.id))
            training.stop()
