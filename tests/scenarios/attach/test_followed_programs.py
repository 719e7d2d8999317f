"""C4D follows programs that nobody of us has started: perftest under the preloaded library, found by the agents."""

import time

import pytest

BYTES, MESSAGES = 65536, 8_000
BANDWIDTH = f"ib_write_bw -d {{device}} -x {{gid}} -m 4096 -s {BYTES} -n {MESSAGES} --report_gbits"
WITHIN_S = 60.0
LEARN_S = 3.0


@pytest.fixture
def perftest(program, rdma_hosts):
    """Start ib_write_bw as a job of this name; returns once it is followed."""
    if not program.has("ib_write_bw", rdma_hosts[:2]):
        pytest.skip("no-ib_write_bw: the hosts have none on PATH; install perftest")
    return lambda job: program(BANDWIDTH, hosts=rdma_hosts[:2], job=job)


def wait_for(holds, within_s=WITHIN_S):
    until_s = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    return found


@pytest.mark.needs(hosts=2)
def test_perftest_is_followed_until_it_ends(cluster, perftest, rdma_hosts):
    """Its connection is named by NICs and ranks, all bytes are counted, nothing is found wrong, and the job ends."""
    ran, jobs = perftest("followed"), cluster.parts.registry
    wait_for(lambda: "followed" in jobs.jobs())
    job = cluster.job("followed")
    assert ran.wait(WITHIN_S) == 0
    wait_for(lambda: "followed" not in jobs.jobs())
    conns = [conn for one in job.recording.copy() if hasattr(one, "conns") for conn in one.conns]
    server, client = (host.nics[0].name for host in rdma_hosts[:2])
    busy = [conn for conn in conns if conn.messages]
    assert {(conn.source, conn.destination) for conn in busy} == {(client, server)}
    assert max(conn.size_bytes for conn in busy) <= BYTES * MESSAGES
    assert max(conn.size_bytes for conn in busy) > BYTES * MESSAGES / 2
    assert cluster.diagnoses("followed") == []


@pytest.mark.needs(hosts=2)
def test_a_slow_nic_under_perftest_is_named(cluster, perftest, rdma_hosts, inject, measure):
    """A NIC at half its rate is named, or is an alternative: perftest sends one way over one path."""
    perftest("slowed")
    wait_for(lambda: "slowed" in cluster.parts.registry.jobs())
    time.sleep(LEARN_S)
    with inject("nic.rate", host=rdma_hosts[1].name, nic=0, direction="tx", fraction=0.5) as fault:
        found = cluster.wait_diagnosis("slowed", WITHIN_S, fault.onset_s)
    assert found is not None
    assert fault.target in (found.component, *found.alternatives)
    measure("attach.alarm_s", found.alarmed_s - fault.onset_s, unit="s", at_most=3.0, fault="nic.rate")


@pytest.mark.needs(hosts=2)
def test_a_killed_perftest_is_named(cluster, perftest):
    """A process that is killed is named, by the signal that the kernel tells of."""
    ran = perftest("killed")
    wait_for(
        lambda: (
            len(cluster.parts.registry.jobs()["killed"].spec.members) == 2
            if "killed" in cluster.parts.registry.jobs()
            else 0
        )
    )
    time.sleep(1.0)
    ran.processes[1].signal(9)
    found = cluster.wait_diagnosis("killed", WITHIN_S)
    assert (found.component.kind, found.cause) == ("rank", "process_ended")
