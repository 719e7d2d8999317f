"""The scenarios of the lab, unchanged, on hosts that are no lab's and have no RDMA."""

import os
import subprocess
import sys
from pathlib import Path

import netns_hosts
import pytest

from c4bench.record import RunDirectory

REPOSITORY = Path(__file__).parents[2]
REASON = netns_hosts.missing()


@pytest.mark.skipif(bool(REASON), reason=REASON)
def test_the_same_scenarios_run_and_skip_what_needs_rdma(tmp_path):
    """Deployment passes on plain SSH hosts; what needs RDMA or GPUs is skipped, with that reason."""
    run = tmp_path / "run"
    with netns_hosts.netns_hosts(2, tmp_path, {}) as made:
        command = [sys.executable, "-m", "pytest", f"--hosts={made.inventory}", f"--c4-run-dir={run}", "-rs"]
        done = subprocess.run(
            [*command, f"--c4-trust={tmp_path / 'none'}", "tests/scenarios/hosts", "tests/scenarios/verbs"],
            cwd=REPOSITORY,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed, 16 skipped" in done.stdout
    assert "no-rdma: no RDMA device on any host" in done.stdout
    assert "no-gpu: 0 of 2 hosts have it" in done.stdout
    assert "c4bench: nothing is degraded; 1 scenarios would, and are skipped" in done.stdout
    names = [measurement.name for measurement in RunDirectory(run).measurements()]
    assert names == ["deploy.hosts_answering_fraction", "deploy.idempotent"]
