"""Slurm on the hosts: an MPI job that loses a NIC is started again by Slurm without the host that C4D names."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c4bench.control.hooks import HookPolicy, Hooks
from c4bench.lab.spec import CONTROL_SOCKET

ALL_REDUCE = Path(__file__).with_name("all_reduce.c")
NODES, RANKS = 4, 3
COUNT, ROUNDS, COMPUTE_US = 65_536, 1_000_000, 20_000
WITHIN_S, LEARN_S = 60.0, 4.5
PATH = f"{os.environ['PATH']}:/usr/sbin"
DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=c4
SlurmctldHost={controller}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
JOB = """#!/bin/sh
exec {python} -m c4bench.cli.main attach -- mpirun.openmpi -np {ranks} {words}
"""
# As in test_started_programs: on SoftRoCE, UCX cannot see the type of a UD packet.
UCX = {"OMPI_MCA_pml": "ucx", "UCX_TLS": "rc_v,self", "UCX_UD_VERBS_ETH_DGID_CHECK": "n"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def until(holds):
    """What `holds` returns once that is true."""
    deadline_s = time.monotonic() + WITHIN_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found


class Slurm:
    """A controller on this machine, and a daemon on each host; they share `folder` and the key in it."""

    def __init__(self, folder, hosts, log):
        self.folder, self._log, self._daemons = folder, log, []
        self.environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": PATH}
        nodes = "".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=1\n" for host in hosts)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((hosts[0].address, 9))
            names = {"controller": socket.gethostname(), "address": probe.getsockname()[0]}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, nodes=nodes, **names))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(bytes(1024))
        (folder / "munge.key").chmod(0o400)

    def start(self, hosts, program):
        """Returns once all hosts are idle."""
        munge = [f"--{part}-file={self.folder}/munge.{part}" for part in ("key", "pid", "log", "seed")]
        socket_of_munge = self.folder / "munge.socket"
        self._daemon("munged", "--foreground", "--force", f"--socket={socket_of_munge}", *munge)
        until(socket_of_munge.exists)
        self._daemon("slurmctld", "-D")
        start = f"mkdir -p /run/slurmd; SLURM_CONF={self.folder}/slurm.conf PATH={PATH} exec slurmd -D"
        program(["sh", "-c", start], hosts=hosts, attach=False)
        until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(hosts))

    def _daemon(self, *words):
        with self._log.open("a") as log:
            self._daemons.append(subprocess.Popen(words, env=self.environment, stdout=log, stderr=log))

    def run(self, *words, environment=None):
        """What a command prints; nothing where it fails."""
        own = self.environment | (environment or {})
        return subprocess.run(words, env=own, capture_output=True, text=True, check=False).stdout

    def end(self):
        self.run("scancel", "--user=root")
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()


@pytest.fixture
def slurm(shared, program, rdma_hosts, run_directory):
    """Slurm on the first hosts, of the scenario's own."""
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: these hosts are not a lab's, and may have a Slurm of their own")
    if missing := [name for name in DAEMONS if not shutil.which(name, path=PATH)]:
        pytest.skip(f"no-{missing[0]}: apt-get install --no-install-recommends slurm-wlm munge")
    shared.mkdir()
    # A lab's own machine has no loopback, by which Slurm's commands reach a controller on the same machine.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    one = Slurm(shared, rdma_hosts[:NODES], run_directory.path / "slurm.log")
    try:
        one.start(rdma_hosts[:NODES], program)
        yield one
    finally:
        one.end()
        shutil.rmtree(shared)


class Batch:
    """A job of MPI that has been submitted, with what it prints in `output`."""

    def __init__(self, slurm, python, words, environment):
        self._slurm, self._output = slurm, slurm.folder / "output"
        (slurm.folder / "job").write_text(JOB.format(ranks=RANKS, words=words, python=python))
        options = ("--parsable", "--requeue", f"--nodes={RANKS}", "--ntasks-per-node=1", "--open-mode=append")
        words = ("sbatch", *options, f"--output={self._output}", str(slurm.folder / "job"))
        self._number = slurm.run(*words, environment=environment).strip()

    @property
    def hosts(self):
        """Those on which it runs, by name; none while it waits."""
        nodes = self._slurm.run("squeue", "-h", "-j", self._number, "-t", "RUNNING", "-o", "%N").strip()
        return self._slurm.run("scontrol", "show", "hostnames", nodes).split() if nodes else []

    @property
    def lines(self):
        """How many lines it has printed: one for each all-reduce."""
        return self._output.read_text().count("\n") if self._output.exists() else 0


@pytest.fixture
def batch(slurm, program, rdma_hosts, inventory):
    """All-reduces of Open MPI, attached, as a job of Slurm."""
    if not program.has("mpicc.openmpi", rdma_hosts[:NODES]):
        pytest.skip("no-mpicc.openmpi: install libopenmpi-dev")
    subprocess.run(["mpicc.openmpi", "-O2", "-o", slurm.folder / "all_reduce", ALL_REDUCE], check=True)
    asked = program("echo {gid}", hosts=rdma_hosts[:1], attach=False)
    asked.wait(WITHIN_S)
    networks = ",".join(f"{host.address}/32" for host in rdma_hosts)
    own = UCX | AS_ROOT | {"UCX_IB_GID_INDEX": asked.output.strip()}
    own |= dict.fromkeys(("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include"), networks)
    return Batch(
        slurm,
        inventory.access[rdma_hosts[0].name].python,
        f"{slurm.folder}/all_reduce {COUNT} {ROUNDS} {COMPUTE_US}",
        own,
    )


@pytest.fixture
def hook(slurm, cluster):
    """What a master with `--hook 'c4bench hook slurm --do'` does about findings."""
    command = ("env", f"SLURM_CONF={slurm.folder}/slurm.conf", f"PATH={PATH}", sys.executable, "-m")
    policy = HookPolicy(((*command, "c4bench.cli.main", "hook", "slurm", "--do"),), jobs=("slurm-*",))
    cluster.run_beside(Hooks(policy, cluster.parts.log, cluster.parts.registry.hosts_of).run())


@pytest.mark.nightly
@pytest.mark.needs(hosts=NODES)
@pytest.mark.usefixtures("atlas", "hook")
def test_a_job_of_mpi_goes_on_without_the_host_that_is_named(slurm, batch, cluster, rdma_hosts, inject, measure):
    """C4D names the NIC, its hook drains the host and requeues the job, and all-reduces go on elsewhere."""
    until(lambda: batch.lines)
    first, victim = batch.hosts, rdma_hosts[1].name
    assert victim in first
    jobs = cluster.parts.registry.jobs
    job = until(lambda: next((name for name, one in jobs().items() if len(one.spec.members) == RANKS), ""))
    time.sleep(LEARN_S)
    with inject("nic.down", host=victim, nic=0, lease_s=WITHIN_S) as fault:
        found = cluster.wait_diagnosis(job, WITHIN_S, fault.observed_s)
        measure("attach.alarm_s", found.alarmed_s - fault.observed_s, unit="s", program="openmpi", fault="nic-down")
        until(lambda: slurm.run("sinfo", "-h", "-n", victim, "-o", "%t").strip() in {"drain", "drng"})
        reason = slurm.run("sinfo", "-h", "-n", victim, "-o", "%E").strip()
        assert reason == f"c4bench: port_down, nic {victim}/0"
        seen = batch.lines
        until(lambda: batch.hosts not in ([], first) and batch.lines > seen)
        measure("attach.requeue_s", time.time() - fault.observed_s, unit="s", scheduler="slurm", program="openmpi")
    assert victim not in batch.hosts
