"""The scenarios of the lab, unchanged, on hosts that are no lab's and have no RDMA."""

import json
import os
import subprocess
import sys
from pathlib import Path

import netns_hosts
import pytest

from c4bench.record import RunDirectory

REPOSITORY = Path(__file__).parents[2]
REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
NOT_DEPLOYED = ("--ignore=tests/scenarios/hosts/test_deploy.py",)
# What the scenario of deployment measures.
DEPLOYED = ("deploy.hosts_answering_fraction", "deploy.idempotent")


def scenarios(folder, *words):
    """All scenarios of `make test` on a plain host: the run, the exit code and the output."""
    run = folder / "run"
    with netns_hosts.netns_hosts(1, folder, {}) as made:
        command = [sys.executable, "-m", "pytest", f"--hosts={made.inventory}", f"--c4-run-dir={run}", "-rs", *words]
        done = subprocess.run(
            [*command, "-m", "not nightly", f"--c4-trust={folder / 'none'}", "tests/scenarios"],
            cwd=REPOSITORY,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    return RunDirectory(run), done.returncode, done.stdout


@pytest.mark.parametrize("deployed", [(), pytest.param(DEPLOYED, marks=pytest.mark.nightly)], ids=["day", "night"])
def test_scenarios_that_need_rdma_are_skipped_and_the_run_is_inconclusive(tmp_path, deployed):
    """A model of bandwidth, and deployment, need no RDMA; the rest is skipped with its reason, and the exit code is 4.

    By day `test_netns_deploy.py` deploys.
    """
    run, code, output = scenarios(tmp_path, *(() if deployed else NOT_DEPLOYED))
    assert code == 4, output[-3000:]
    assert "no-rdma: no RDMA device on any host" in output
    assert "c4bench: nothing is degraded; " in output
    assert [measurement.name for measurement in run.measurements()] == [
        "diloco.table4_on_grid",
        "diloco.table4_within_step",
        *deployed,
    ]
    counted = json.loads((run.path / "run.json").read_text())
    assert counted["scenarios"].keys() == {"pass", "skip"}
    assert sum(counted["skips"].values()) == counted["scenarios"]["skip"] > 100
    page = (run.path / "report.html").read_text()
    assert "<h1>Inconclusive</h1>" in page
    assert "skipped: no-rdma: no RDMA device on any host" in page


def test_required_capabilities_fail_instead(tmp_path):
    """With `--c4-require`, what is skipped for want of RDMA fails, whatever else the hosts are too few for."""
    run, code, output = scenarios(tmp_path, "--c4-require=rdma", "--c4-allow-disruptive", *NOT_DEPLOYED)
    assert code == 1
    counted = json.loads((run.path / "run.json").read_text())
    assert counted["scenarios"]["fail"] > 50, counted
    assert not [reason for reason in counted["skips"] if reason.startswith(("no-rdma", "no-agents"))]
    assert "Traceback" not in output
