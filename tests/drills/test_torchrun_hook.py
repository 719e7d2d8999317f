"""torchrun itself, on this machine: the rank that is named is ended, and the elastic agent starts its group again."""

import os
import subprocess
import sys
import time

import msgspec
import pytest

from c4bench.model.diagnosis import Component, Diagnosis, Syndrome
from c4bench.model.hook import HookInput
from c4bench.model.measurement import Clock
from c4bench.record import Ledger

PYTHON = "/usr/bin/python3"  # the distribution's, which has its PyTorch
_WITHIN_S = 90.0
pytestmark = pytest.mark.nightly
RANKS, STEPS, STOPS_AT = 3, 5, 2
WORKER = f"""
import os, signal, sys
import torch
from torch import distributed
distributed.init_process_group("gloo")
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), distributed.get_rank()
for step in range({STEPS}):
    if (attempt, rank, step) == (0, 1, {STOPS_AT}):
        os.kill(os.getpid(), signal.SIGSTOP)
    ones = torch.ones(4)
    distributed.all_reduce(ones)
    with open(f"{{sys.argv[1]}}/{{rank}}", "a") as file:
        file.write(f"{{attempt}}.{{step}}={{int(ones[0])}} ")
"""


def until(holds):
    """What `holds` returns once that is true."""
    deadline_s = time.monotonic() + _WITHIN_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found


@pytest.fixture
def job(tmp_path):
    """A job of three ranks that hangs, since one of them has stopped; `written(rank)` is what a rank has done."""
    if subprocess.run([PYTHON, "-c", "import torch.distributed"], capture_output=True, check=False).returncode:
        pytest.skip("no-torch: apt-get install --no-install-recommends python3-torch")
    (tmp_path / "worker.py").write_text(WORKER)
    options = [f"--nproc_per_node={RANKS}", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv_id=c4.7"]
    options += ["--max_restarts=1", "--monitor_interval=0.2"]
    # Debian's PyTorch 1.13 cannot read the defaults of these two beside Python 3.11.
    options += ["--redirects=0:1", "--tee=0:1", f"--log_dir={tmp_path}/logs"]
    command = [PYTHON, "-m", "torch.distributed.run", *options]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen([*command, "worker.py", str(tmp_path)], cwd=tmp_path, stdout=log, stderr=log)

    def written(rank):
        path = tmp_path / str(rank)
        return path.read_text().split() if path.exists() else []

    running.written = written
    yield running
    running.kill()
    running.wait()


def test_a_group_starts_again_without_its_stopped_rank(job, tmp_path, drills, request):
    """`c4bench hook torchrun --do` kills the rank that stands still; the second attempt runs all steps."""
    until(lambda: all(len(job.written(rank)) == STOPS_AT for rank in range(RANKS)))
    (tmp_path / "ssh").write_text('#!/bin/sh\nexec sh -c "$4"\n')  # the host that is named is this one
    (tmp_path / "ssh").chmod(0o755)
    seen = 1.0, 2.0, 3.0, 0.98, ("seen",), "it moves"
    found = Diagnosis("torchrun-c4.7", Syndrome.NON_COMMUNICATION_HANG, Component("rank", "torchrun-c4.7:1"), *seen)
    given = msgspec.json.encode(HookInput.of(found, found.job, ("localhost",) * RANKS))
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    began_s = time.monotonic()
    words = [sys.executable, "-m", "c4bench.cli.main", "hook", "torchrun", "--do"]
    done = subprocess.run(words, input=given, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    until(lambda: "1.0=3" in job.written(0))
    took_s = time.monotonic() - began_s
    Ledger(drills, request.node.nodeid).measure(
        "attach.requeue_s", took_s, "s", clock=Clock.MACHINE, scheduler="torchrun"
    )
    assert job.wait(_WITHIN_S) == 0, (tmp_path / "log").read_text()
    first, second = [f"0.{step}=3" for step in range(STOPS_AT)], [f"1.{step}=3" for step in range(STEPS)]
    assert [job.written(rank) for rank in range(RANKS)] == [first + second] * RANKS
