"""What scenarios of C4D ask of the fabric."""

import time

import pytest
from trial_verdict import drawn

from c4bench.c4d import detectors
from c4bench.c4d.offline import detect
from c4bench.campaign.measurable import Measurable
from c4bench.model.measurement import Clock
from c4bench.model.recording import Evaluated

BACK_S = 30.0
# A link that C4D has blamed is used again after a minute.
OPEN_S = 90.0
WHOLE_S = 1.0
# Until a job runs or a short one has ended; and for each step of a long one.
READY_S, STEP_S = 60.0, 3.0


@pytest.fixture
def replayed(cluster, pytestconfig):
    """Whether a job's recording, judged again, says what was said of the job live, times and all."""

    def check(job):
        recording = cluster.recording(job)
        until_s = max(record.at_s for record in recording if isinstance(record, Evaluated))
        again = detect(recording, detectors.detector(pytestconfig.option.c4_detector))
        return again == [found for found in cluster.diagnoses(job) if found.named_s <= until_s]

    return check


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


@pytest.fixture
def soak(cluster, atlas, run_directory, measure):  # noqa: ARG001 (planned paths)
    """Run so many steps of a healthy job, others beside it: C4D may name nothing of any of them.

    `beside` run as long as it does, `visits` one after the other; the recordings of all are kept.
    """

    def end(job):
        found = cluster.diagnoses(job.id)
        run_directory.save_telemetry(job.id, cluster.recording(job.id))
        cluster.stop(job.id)
        return found

    def run(job, visits, steps, *, beside=(), gap_s=0.0, **labels):
        found = []
        running = [cluster.start(each) for each in (job, *beside)]
        try:
            for each in running:
                cluster.results(each, "ready", READY_S)
            for visit in visits:
                time.sleep(gap_s)
                cluster.results(cluster.start(visit), "done", READY_S)
                found += end(visit)
            cluster.results(running[0], "done", steps * STEP_S)
        finally:
            found += [one for each in running for one in end(each.spec)]
        measure("soak.iterations", steps, clock=Clock.NONE, **labels)
        measure("soak.false_alarms", len(found), at_most=0, clock=Clock.NONE, **labels)
        assert not found, [f"{one.job}: {one.syndrome}: {one.component}; {one.evidence}" for one in found]

    return run
