"""C4D follows programs that nobody of us has started: perftest under the preloaded library, found by the agents."""

import time

import pytest

from c4bench.model.window import Window

BYTES = 65536
BANDWIDTH = f"ib_write_bw -d {{device}} -x {{gid}} -m 4096 -s {BYTES} --report_gbits -n"
WITHIN_S = 60.0


@pytest.fixture
def perftest(program, rdma_hosts, cluster):
    """Start ib_write_bw, of so many messages, as a job of this name; returns it once both processes are followed."""
    if not program.has("ib_write_bw", rdma_hosts[:2]):
        pytest.skip("no-ib_write_bw: the hosts have none on PATH; install perftest")

    def start(job, messages):
        ran = program(f"{BANDWIDTH} {messages}", hosts=rdma_hosts[:2], job=job)
        jobs = cluster.parts.registry.jobs
        wait_for(lambda: job in jobs() and len(jobs()[job].spec.members) == 2)
        return ran

    return start


def wait_for(holds):
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.needs(hosts=2)
@pytest.mark.nightly
def test_perftest_is_followed_until_it_ends(cluster, perftest, rdma_hosts):
    """Its connection is named by NICs and ranks, its bytes are counted, nothing is found wrong, and the job ends."""
    messages = 20_000
    ran = perftest("followed", messages)
    job = cluster.job("followed")
    assert ran.wait(WITHIN_S) == 0
    wait_for(lambda: "followed" not in cluster.parts.registry.jobs())
    windows = [record for record in job.recording.copy() if isinstance(record, Window)]
    busy = [conn for window in windows for conn in window.conns if conn.messages]
    server, client = (host.nics[0].name for host in rdma_hosts[:2])
    assert {(conn.source, conn.destination) for conn in busy} == {(client, server)}
    assert BYTES * messages / 2 < max(conn.size_bytes for conn in busy) <= BYTES * messages
    assert cluster.diagnoses("followed") == []


@pytest.mark.needs(hosts=2)
def test_a_killed_perftest_is_named(cluster, perftest):
    """A process that is killed is named, by the signal that the kernel tells of."""
    ran = perftest("killed", 60_000)
    ran.processes[1].signal(9)
    found = cluster.wait_diagnosis("killed", WITHIN_S)
    assert (found.component.kind, found.cause) == ("rank", "process_ended")
