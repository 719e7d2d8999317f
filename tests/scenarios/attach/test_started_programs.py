"""Programs of others, started on hosts by the fixture `program`: pairs, a command on each host, and launchers."""

import subprocess
from pathlib import Path

import pytest

from c4bench.attach.environment import SOCKET
from c4bench.units import payload_bound
from c4bench.workload.jobs import place

WITHIN_S = 60.0
BANDWIDTH = "ib_write_bw -d {device} -x {gid} -m 4096 -s 65536 -n 1000 --report_gbits"
SERVE = "import socket\nc = socket.create_server(('', 5201)).accept()[0]\nwhile c.recv(65536): pass"
SEND = "import socket\nsocket.create_connection(('{server}', 5201)).sendall(bytes(1 << 20))\nprint('sent')"
ALL_REDUCE = Path(__file__).with_name("all_reduce.c")
# How Open MPI and MPICH use the RDMA devices by UCX; on SoftRoCE, UCX cannot see the type of a UD packet.
UCX = {
    "OMPI_MCA_pml": "ucx",
    "UCX_TLS": "rc_v,self",
    "UCX_IB_GID_INDEX": "{gid}",
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
    "MPIR_CVAR_NOLOCAL": "1",
}
# Open MPI's ring, of messages that UCX does not fetch by reading: docs/reference/attach.md says why.
RING = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    "UCX_RNDV_THRESH": "inf",
}


@pytest.fixture
def need(program, hosts):
    """Skip where a program is not installed on the hosts, with the package that has it."""

    def check(tool, package):
        if not program.has(tool, hosts[:2]):
            pytest.skip(f"no-{tool}: {hosts[0].name} and {hosts[1].name} have no {tool} on PATH; install {package}")

    return check


@pytest.mark.needs(hosts=2)
def test_a_program_is_timed_by_its_hosts_clock(program, hosts, measure):
    """A command of a second takes a second, on each host; the numbers of its ranks are in its environment."""
    started = program("sh -c 'sleep 1; echo $RANK of $WORLD_SIZE'", hosts=hosts[:2], attach=False)
    assert started.wait(WITHIN_S) == 0
    assert [process.output() for process in started.processes] == ["0 of 2\n", "1 of 2\n"]
    measure("attach.duration_s", started.duration_s, unit="s", at_most=1.1)
    assert started.duration_s >= 1.0


@pytest.mark.needs(hosts=2)
def test_a_client_finds_its_server(program, hosts):
    """The server listens before the client starts, and both end."""
    started = program(["python3", "-c", SEND], server=["python3", "-c", SERVE], hosts=hosts[:2], attach=False)
    assert started.wait(WITHIN_S) == 0
    assert started.output == "sent\n"


@pytest.mark.needs(hosts=2)
def test_perftest_sees_a_slow_nic(program, need, rdma_hosts, inject, measure):
    """Perftest has line rate, and four tenths of it while a NIC sends at these, a rate in whole Gbit/s."""
    need("ib_write_bw", "perftest")
    bound = payload_bound(rdma_hosts[1].nics[0].rate_bps)

    def goodput_ratio(fraction):
        ran = program(BANDWIDTH, hosts=rdma_hosts[:2])
        ran.wait(WITHIN_S)
        ratio = ran.figure.value / bound / fraction
        measure("attach.goodput_ratio", ratio, at_least=0.97, program="ib_write_bw", fraction=fraction)
        assert ratio < 1.02

    goodput_ratio(1.0)
    with inject("nic.rate", host=rdma_hosts[1].name, nic=0, direction="tx", fraction=0.4):
        goodput_ratio(0.4)


@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("ucx_perftest -t tag_bw -s 65536 -n 200 -w 10", "ucx-utils"),
        pytest.param("ib_read_bw -d {device} -x {gid} -m 4096 -s 65536 -n 200", "perftest", marks=pytest.mark.nightly),
        pytest.param("ucx_perftest -t ucp_put_bw -s 65536 -n 200 -w 10", "ucx-utils", marks=pytest.mark.nightly),
    ],
)
def test_a_pair_has_line_rate(program, need, rdma_hosts, measure, words, package):
    """A server and its client, started from one command, carry what a NIC can; the figure is what they print."""
    tool = words.partition(" ")[0]
    need(tool, package)
    ran = program(words, hosts=rdma_hosts[:2], environment=UCX)
    ran.wait(WITHIN_S)
    ratio = ran.figure.value / payload_bound(rdma_hosts[1].nics[0].rate_bps)
    measure("attach.goodput_ratio", ratio, at_least=0.98, program=f"{tool} {ran.figure.name}")


@pytest.mark.needs(hosts=2)
@pytest.mark.parametrize(
    ("mpi", "package"),
    [("openmpi", "libopenmpi-dev"), pytest.param("mpich", "libmpich-dev", marks=pytest.mark.nightly)],
)
def test_an_all_reduce_of_mpi_is_exact(program, need, rdma_hosts, tmp_path, measure, mpi, package):
    """A program compiled here runs on hosts by the MPI's own launcher; all elements are right, each round timed."""
    need(f"mpicc.{mpi}", package)
    subprocess.run([f"mpicc.{mpi}", "-O2", "-o", tmp_path / "all_reduce", ALL_REDUCE], check=True)
    path = program.copy(tmp_path / "all_reduce", rdma_hosts[:2])
    words = [f"mpirun.{mpi}", "-np", "2", path, "262144", "3"]
    ran = program(words, hosts=rdma_hosts[:2], environment=UCX)
    assert ran.wait(WITHIN_S) == 0
    assert [figure.size_bytes for figure in ran.figures] == [1 << 20] * 3
    measure("attach.all_reduce_s", ran.figure.value, unit="s", program=mpi)


@pytest.mark.nightly
@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("atlas")
def test_open_mpi_is_faster_on_planned_paths(program, need, cluster, rdma_hosts, tmp_path, measure):
    """A ring of eight ranks, each on another leaf than the next, takes less time on the plan's paths than on ECMP's."""
    need("mpicc.openmpi", "libopenmpi-dev")
    subprocess.run(["mpicc.openmpi", "-O2", "-o", tmp_path / "all_reduce", ALL_REDUCE], check=True)
    hosts = place(rdma_hosts[:8])
    path = program.copy(tmp_path / "all_reduce", hosts)
    took_s = {}
    for paths, nobody in (("planned", {}), ("ECMP", {SOCKET: "/run/c4bench/nobody"})):
        words = ["mpirun.openmpi", "-np", "8", path, "2097152", "3"]
        ran = program(words, hosts=hosts, environment=UCX | RING | nobody)
        assert ran.wait(2 * WITHIN_S) == 0
        took_s[paths] = sum(figure.value for figure in ran.figures[1:])  # the first one connects
        if paths == "planned":
            sources = {flow.source for flow in cluster.placed(ran.job)}
    assert sources == {host.nics[0].name for host in hosts}
    measure("attach.gain_over_ecmp", took_s["ECMP"] / took_s["planned"], at_least=1.0, program="openmpi", ranks=8)


@pytest.mark.nightly
@pytest.mark.needs(hosts=2)
def test_libfabrics_pingpong(program, need, rdma_hosts):
    """fi_pingpong connects by rdma_cm, waits by polling, and finds all its messages as they were sent."""
    need("fi_pingpong", "libfabric-bin")
    words = "fi_pingpong -p verbs -e msg -c -I 100"
    ran = program(f"{words} {{server_address}}", server=words, hosts=rdma_hosts[:2])
    assert ran.wait(WITHIN_S) == 0
    sizes = [line.split()[:2] for line in ran.processes[1].output().splitlines() if line[:1].isdigit()]
    assert [size for size, _ in sizes] == ["64", "256", "1k", "4k", "64k", "1m"]
    assert {count for _, count in sizes} == {"100"}
