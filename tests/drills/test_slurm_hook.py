"""Slurm itself, on this machine with two nodes: a finding drains the node, and the job starts again on the other."""

import os
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from bus_scene import free_port

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.hook import HookInput
from c4bench.model.measurement import Clock
from c4bench.record import Ledger

NODES = ("n0", "n1")
_WITHIN_S = 60.0
DAEMONS = ("munged", "slurmctld", "slurmd")
_PATH = f"{os.environ['PATH']}:/usr/sbin"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not all(shutil.which(daemon, path=_PATH) for daemon in DAEMONS),
        reason="Slurm is not installed: apt-get install --no-install-recommends slurm-wlm munge",
    ),
]
CONFIGURATION = """
ClusterName=c4
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PartitionName=all Nodes=n0,n1 Default=YES State=UP
"""
JOB = """#!/bin/sh
echo $SLURMD_NODENAME >> {folder}/ran
sleep 600
"""


def until(holds):
    """What `holds` returns once that is true."""
    deadline_s = time.monotonic() + _WITHIN_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return found


class Slurm:
    """A controller and two nodes; `ran` are the nodes on which the job has started, in order."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        nodes = "".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=1\n" for name in NODES
        )
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, port=free_port()) + nodes)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        munge = [f"--{part}-file={folder}/munge.{part}" for part in ("key", "pid", "log", "seed")]
        self.daemons = [self.start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge)]
        until((folder / "munge.socket").exists)
        self.daemons += [self.start("slurmctld", "-D"), *(self.start("slurmd", "-D", "-N", name) for name in NODES)]
        until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"])

    def start(self, *words):
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)

    def run(self, *words, text=None):
        """What a command prints; nothing where it fails."""
        done = subprocess.run(words, input=text, env=self.environment, capture_output=True, check=False)
        return done.stdout.decode() if done.returncode == 0 else ""

    @property
    def ran(self):
        file = self.folder / "ran"
        return file.read_text().split() if file.exists() else []

    def end(self):
        self.run("scancel", "--user=root")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()


@pytest.fixture
def slurm(tmp_path):
    one = Slurm(tmp_path)
    yield one
    one.end()


def test_a_job_starts_again_without_the_node_that_is_named(slurm, drills, request):
    """`c4bench hook slurm --do` drains n0 with the finding as reason; the job, which was there, runs on n1 at once."""
    (slurm.folder / "job").write_text(JOB.format(folder=slurm.folder))
    number = slurm.run("sbatch", "--parsable", "--requeue", "--output=/dev/null", str(slurm.folder / "job")).strip()
    until(lambda: slurm.ran == ["n0"])
    seen = 1.0, 2.0, 3.0, 0.98, ("seen",), "it moves"
    found = Diagnosis(f"slurm-{number}", Syndrome.COMMUNICATION_HANG, Component("nic", "n0/0"), *seen)
    given = msgspec.json.encode(HookInput.of(found, found.job, ("n0",)))
    began_s = time.monotonic()
    said = slurm.run(sys.executable, "-m", "c4bench.cli.main", "hook", "slurm", "--do", text=given)
    assert said.startswith("ran: scontrol update nodename=n0 ")
    until(lambda: slurm.ran == ["n0", "n1"])
    took_s = time.monotonic() - began_s
    Ledger(drills, request.node.nodeid).measure("attach.requeue_s", took_s, "s", clock=Clock.MACHINE, scheduler="slurm")
    state, reason = slurm.run("sinfo", "-h", "-n", "n0", "-o", "%t|%E").strip().split("|")
    assert state in {"drain", "drng"}
    assert reason == "c4bench: communication_hang, nic n0/0"
