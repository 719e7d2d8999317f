"""Programs of others on the hosts, by their own launchers."""

import time
from pathlib import Path

import pytest

UCX = {
    "UCX_TLS": "rc_v,self",
    "UCX_IB_GID_INDEX": "1",
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
    "OMPI_MCA_pml": "ucx",
    "MPIR_CVAR_NOLOCAL": "1",
}


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_tcp_mpi(program, hosts, mpi, tmp_path):
    import subprocess
    t = time.time()
    subprocess.run(["mpicc." + mpi, "-O2", "-o", tmp_path / "all_reduce", Path(__file__).with_name("all_reduce.c")], check=True)
    print("compiled", time.time() - t)
    path = program.copy(tmp_path / "all_reduce", hosts[:4])
    started = program(["mpirun." + mpi, "-np", "4", path, "262144", "3"], hosts=hosts[:4], environment=UCX)
    print(started.wait(60, check=False), started.output, started.duration_s, time.time() - t)
    print(started.figures)


def test_perftest(program, hosts):
    t = time.time()
    started = program("ib_write_bw -d {device} -x {gid} -m 4096 -s 65536 -n 200 --report_gbits", hosts=hosts[:2])
    print(started.wait(60), started.output, started.figure, started.duration_s, time.time() - t)
