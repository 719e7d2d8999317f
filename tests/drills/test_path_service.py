"""The master as a service that plans: two jobs of operators, and the master killed and started again under them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from c4bench.units import FRAME_BYTES, PATH_MTU_BYTES, payload_bound

REPOSITORY = Path(__file__).parents[2]
RATE_BPS = 1e10
SIZE_BYTES = 8 << 20
OPERATIONS = 8
TOPOLOGY = Path(__file__).with_name("four.yml")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the scene in `path_service_scene.py`, played in a lab, has seen."""
    run = tmp_path_factory.mktemp("service")
    scene = [str(Path(__file__).with_name("path_service_scene.py")), str(run / "lab/trust"), str(run)]
    lab = [sys.executable, "-m", "c4bench.cli.main", "lab", "run", f"--topology={TOPOLOGY}", f"--run-dir={run}", "--"]
    done = subprocess.run([*lab, sys.executable, *scene], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((run / "seen.json").read_text())


def test_every_job_gets_its_paths_without_asking_for_a_plan(seen):
    """Every job has at least 0.97 of what its NICs can send, the operations without a master included."""
    bound = payload_bound(RATE_BPS)
    shares = [
        SIZE_BYTES * 8 / max(ended_s - began_s for began_s, ended_s in spans) / bound
        for ranks in seen["steady"]
        for spans in list(zip(*(rank["spans"] for rank in ranks), strict=True))[2:]
    ]
    assert len(shares) == 2 * (OPERATIONS - 2)
    assert min(shares) >= 0.97
    assert sum(rank["exact"] for ranks in seen["steady"] for rank in ranks) == 4 * OPERATIONS


def test_switches_count_one_flow_on_each_link(seen):
    """With four flows and four uplinks, each carries one flow's bytes, by the counters of the switches."""
    flow = OPERATIONS * SIZE_BYTES * FRAME_BYTES / PATH_MTU_BYTES
    spines = [seen["carried"][hop] for hop, (switch, _) in seen["switch"].items() if switch.startswith("spine")]
    loaded = [count for count in spines if count > 0.1 * flow]
    assert len(loaded) == 4
    assert max(loaded) < 1.05 * flow


def test_a_restart_of_the_master_moves_no_flow(seen):
    """The first life has placed all four flows; the second finds them on their paths, and changes nothing."""
    first, second = (
        sum(line.get("changes", 0) for line in life if "changes of paths" in line["message"]) for life in seen["log"]
    )
    assert first >= 4
    assert second == 0
    assert seen["unplanned"] == seen["unplanned_after"] == {}
    assert seen["metrics"] == []


def test_the_master_answers_with_the_paths_it_knows(seen):
    """`c4bench paths` asks the running master, and prints the two paths between two hosts."""
    assert "h0/0 > h2/0: 2 paths" in seen["paths"]
