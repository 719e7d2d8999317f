"""An engineer's first runs on deployed hosts: told what will happen, killed in the middle of it, clean afterwards."""

import os
import signal
import subprocess
import sys
import time

import netns_hosts
import pytest
from sessions import NICS, Deployed, until

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
LEASE_S, LATE_S = 8.0, 2.0
SCENARIO = f"""\
import time
from pathlib import Path
def test_breaks_and_waits(inject, clocks):
    with inject("nic.down", host="n1", nic=0, lease_s={LEASE_S}):
        assert 0 < clocks.error_s("n1") < 1
        Path("broken").touch()
        while not Path("go").exists():
            time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A deployed host with a NIC."""
    folder = tmp_path_factory.mktemp("first-runs")
    with netns_hosts.netns_hosts(1, folder, {"disruptive": True, "nics": NICS}) as made:
        yield Deployed(made, folder, SCENARIO)


@pytest.fixture(autouse=True)
def _no_marks(host):
    """What a scenario has left to say how far it is."""
    for mark in ("broken", "go"):
        (host.folder / mark).unlink(missing_ok=True)


def test_a_run_that_is_killed_leaves_a_clean_host(host, clean):
    """Read-only at first; then announced; killed with a fault in force, which is over by its lease's end."""
    before = host.listing()
    code, said = host.pytest()
    assert code == 4, said  # all is skipped, which proves nothing
    assert "nothing is degraded; 1 scenarios would, and are skipped (--c4-allow-disruptive)" in said
    assert "disruptive-not-allowed" in said
    running = host.start("--c4-allow-disruptive")
    until((host.folder / "broken").exists)
    assert "state DOWN" in host.run("ip link show dev nic0")
    os.killpg(running.pid, signal.SIGKILL)
    began = running.communicate()[0]
    assert "1 of 1 scenarios degrade n1" in began
    assert "faults: nic.down; each ends by itself" in began
    time.sleep(LEASE_S + LATE_S)
    clean(host.listing() == before and host.fault("status") == (0, ""), "pytest killed under a fault")
    (host.folder / "go").touch()
    code, said = host.pytest("--c4-allow-disruptive")
    assert code == 0, said
    assert host.listing() == before


def test_nothing_is_run_on_a_host_under_somebodys_fault(host):
    """A fault in force, by any user, is the one reason to skip everything until it is over."""
    argv = [sys.executable, "-m", "c4bench.cli.main", "fault", "apply", "nic.down", "n1/0", "--last-nic"]
    printed = [f"--hosts={host.inventory}", "--lease=300s", "--json", f"--history={host.folder / 'history'}"]
    with subprocess.Popen([*argv, *printed], stdout=subprocess.PIPE, start_new_session=True) as holding:
        holding.stdout.readline()
        code, said = host.pytest("--c4-allow-disruptive")
        os.killpg(holding.pid, signal.SIGINT)
    assert code == 3, said
    assert "broken-host: n1: 1 faults in force or residues" in said
    assert "c4bench fault heal" in said
    (host.folder / "go").touch()
    code, said = host.pytest("--c4-allow-disruptive")
    assert code == 0, said
