"""The master as a separate process that is killed during a job and during a restart, and started again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TOPOLOGY = Path(__file__).with_name("three.yml")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """What the scene in `master_scene.py`, played in a lab, has seen."""
    run = tmp_path_factory.mktemp("master")
    scene = [sys.executable, str(Path(__file__).with_name("master_scene.py")), str(run / "lab/trust"), str(run)]
    command = [
        sys.executable,
        "-m",
        "c4bench.cli.main",
        "lab",
        "run",
        f"--topology={TOPOLOGY}",
        f"--run-dir={run}",
        "--",
    ]
    done = subprocess.run([*command, *scene], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((run / "told.json").read_text())


def test_a_job_goes_on_without_a_master_and_loses_no_step(reported):
    """Ranks wait for the master where they must, and each step's loss is told once, those of the outage included."""
    assert reported["steps_before"] == list(range(len(reported["steps_before"])))
    assert len(reported["steps_before"]) >= 40
    assert reported["restarts_by_outage"] == 0


def test_what_was_found_before_is_kept_and_nothing_is_found_twice(reported):
    """A watcher hears the same diagnosis before and after the master's death, and no other."""
    assert reported["found_before"] == reported["found_after"]
    assert [found["component"]["name"] for found in reported["found_after"]] == ["drill:1"]


def test_a_restart_cut_short_is_finished_by_the_next_master(reported):
    """Killed between isolation and restart, it starts the attempt it had decided on, on the spare, and once only."""
    assert reported["stages"]["isolated_s"] < reported["killed_s"] < reported["stages"]["resumed_s"]
    assert reported["attempt"] == "drill~1"
    assert reported["stages"]["spare"] in reported["hosts_after"]
    assert reported["stages"]["out"] not in reported["hosts_after"]
    assert reported["steps_after"][0] == reported["stages"]["resumed_step"]


def test_the_pages_want_a_certificate(reported):
    """Health and metrics answer who shows a certificate of the authority, and nobody else."""
    assert reported["agents"] == 3
    assert reported["metrics"]["c4bench_agent_up"] == 3
    assert reported["without_certificate"] == "refused"
