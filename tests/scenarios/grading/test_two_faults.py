"""Two faults at once, on different hosts: C4D names both."""

import time
from functools import partial

import pytest
from campaign import TOGETHER, once, pairs, place
from trial_verdict import named_as

from c4bench.model.measurement import Clock
from c4bench.model.steering import Policy
from c4bench.pytest_plugin.scope import FAULT
from c4bench.workload.jobs import traffic_job
from tools.campaign.truth import same

READY_S = 60.0
LEASE_S = 20.0
PATIENCE_S = 4.0
HEALTHY_S = 3.5
PAIRS = 20


@pytest.fixture
def attempt(cluster, rdma_hosts, inventory, ports, atlas, inject, run_directory, possible_faults):  # noqa: ARG001 (planned paths)
    """Run a job with both faults of a pair, and say where they were, what C4D said, and which of them it named."""

    def run(first, second):
        job = traffic_job(f"pair-{first.number // 2}", "all_to_all", rdma_hosts, seed=first.draw, jitter=0.01)
        places = [place(one, job, rdma_hosts, inventory, ports, possible_faults) for one in (first, second)]
        tried = [f"{one.fault} {where} {one.parameters}" for one, where in zip((first, second), places, strict=True)]
        if len({where.rpartition("@")[2].partition("/")[0] for where in places}) < len(places):
            return {"tried": tried, "refused": "both on one host"}
        running = cluster.start(job, Policy(sweep=True))
        try:
            cluster.results(running, "ready", READY_S)
            time.sleep(first.healthy_s)
            with (
                inject(first.fault, at=places[0], lease_s=LEASE_S, **first.parameters) as one,
                inject(second.fault, at=places[1], lease_s=LEASE_S, **second.parameters) as other,
            ):
                time.sleep(PATIENCE_S)
                found = cluster.diagnoses(job.id)
        finally:
            run_directory.save_telemetry(job.id, cluster.recording(job.id))
            cluster.stop(job.id)
        said = [c for d in found for c in d.suspects]
        return {
            "tried": tried,
            "said": [f"{d.syndrome}: " + " or ".join(map(str, d.suspects)) for d in found],
            "named": [
                any(same(c, target, named_as(target, ports), ports.nics) for c in said)
                for target in (one.target, other.target)
            ],
        }

    return run


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
def test_what_traffic_hides_is_swept(cluster, rdma_hosts, atlas, inject, replayed, measure):  # noqa: ARG001 (planned paths)
    """A NIC at nine tenths of its rate, beside a rank that is late, is named, and no other."""
    job = traffic_job("hidden", "all_to_all", rdma_hosts, seed=1, jitter=0.01)
    running = cluster.start(job, Policy(sweep=True))
    cluster.results(running, "ready", READY_S)
    time.sleep(HEALTHY_S)
    late, slow = job.members[5], rdma_hosts[2].nics[0]
    with (
        inject("nic.rate", at=slow.name, lease_s=LEASE_S, fraction=0.9, direction="both"),
        inject("process.slow", at=f"{job.id}:{late.rank}@{late.host}", lease_s=LEASE_S, factor=1.5),
    ):
        time.sleep(PATIENCE_S)
        found = {str(one.component) for one in cluster.diagnoses(job.id)}
    again = replayed(job.id)
    cluster.stop(job.id)
    right = found == {f"rank {job.id}:{late.rank}", f"nic {slow.name}"}
    measure("sweep.named_fraction", float(right), equals=1, clock=Clock.NONE)
    assert right, found
    assert again


@pytest.mark.nightly
@pytest.mark.needs(*(f"{FAULT}{name}" for name in TOGETHER), hosts=8)
def test_two_faults_at_once(attempt, measure, run_directory, pytestconfig):
    """Of nearly all pairs of slow NICs and slow ranks both are named."""
    runs = {
        f"pair-{first.number // 2}": partial(attempt, first, second)
        for first, second in pairs(pytestconfig.option.c4_seed, PAIRS)
    }
    tried = [verdict for verdict in once(run_directory.path / "pairs.jsonl", runs) if "refused" not in verdict]
    measure("campaign.pairs", len(tried), at_least=0.8 * PAIRS, clock=Clock.NONE)
    both = sum(all(verdict["named"]) for verdict in tried)
    measure("campaign.pairs_correct_fraction", both / len(tried), at_least=0.95, clock=Clock.NONE)
