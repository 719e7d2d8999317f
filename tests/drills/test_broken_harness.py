"""Runs on deployed hosts: told what will happen; if the harness breaks, the right word is said, the host as it was."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import netns_hosts
import netns_systemd
import pytest
from sessions import NIC, NICS, Deployed, until

from c4bench.errors import UnhealthyError
from c4bench.wire.trust import client_context

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
FACTS = {"disruptive": True, "nics": NICS}
LEASE_S, LATE_S, TERM_S = 8.0, 2.0, 6.0
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
UNDER_A_FAULT = ("--c4-allow-disruptive", f"--c4-reserve={TERM_S:g}")
PORT = 7447


@pytest.fixture(scope="module", name="host")
def harness_on_host(host, tmp_path_factory):
    """A deployed host, and scenarios for it."""
    return Deployed(host.made, tmp_path_factory.mktemp("broken"), SCENARIO, host.variables)


def remove_marks(host):
    """What a scenario has left to say how far it is."""
    for mark in ("broken", "go"):
        (host.folder / mark).unlink(missing_ok=True)


@pytest.fixture
def under_a_fault(host):
    """A session of pytest that has just broken the host's NIC; in the end one more runs through, undisturbed."""
    yield from broken(host)


def broken(host):
    remove_marks(host)
    running = host.start(*UNDER_A_FAULT)
    until((host.folder / "broken").exists)
    yield running
    (host.folder / "go").touch()
    code, said = host.pytest(*UNDER_A_FAULT)
    assert code == 0, said


def test_a_run_that_is_killed_leaves_a_clean_host(host, clean):
    """Read-only at first; then announced; killed with a fault in force, which is over by its lease's end."""
    remove_marks(host)
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
    remove_marks(host)
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


@pytest.mark.nightly
def test_the_connection_to_the_host_is_cut(host, under_a_fault, clean):
    """The fault ends by its lease; the run says which host it has lost, and ends with code 3."""
    port = f"ip link set {host.made.name}"
    subprocess.run([*port.split(), "down"], check=True)
    (host.folder / "go").touch()
    said, _ = under_a_fault.communicate(timeout=180)
    subprocess.run([*port.split(), "up"], check=True)
    assert under_a_fault.returncode == 3, said
    assert "UnhealthyError: n1:" in said
    clean("state UP" in host.run("ip link show nic0") and host.fault("status") == (0, ""), "SSH cut")


def test_an_agent_is_killed(host, clean):
    """What it has started goes with it; `check` says that none runs, and `start` brings one back."""
    host.run("pkill -KILL -o -u c4bench -f c4bench.agent.main")
    until(lambda: host.run("pgrep -u c4bench") == "", 10.0)
    with pytest.raises(UnhealthyError, match=r"no agent runs as user c4bench: run start\.yml"):
        host.play("check")
    assert [host.play("start"), host.play("start")] == [1, 0]
    clean(len(agents(host)) == 2, "agent killed")  # the agent and its spawner


def test_the_master_is_killed(host, clean):
    """Agents live on and come to the next master; the killed one leaves nothing that is in its way."""
    trust = host.variables["c4_trust"]
    before = agents(host)
    for _ in range(2):
        argv = [sys.executable, "-m", "c4bench.cli.main", "master", f"--trust={trust}", f"--listen=0.0.0.0:{PORT}"]
        argv.append(f"--state={host.folder / 'master'}")
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as master:
            assert master.stdout.readline().startswith("listening")
            until(lambda: connected(trust) == ["n1"], 20.0)
            master.kill()
    clean(agents(host) == before, "master killed")


def agents(host):
    """Everything of ours that runs there."""
    return [words for words in host.made.processes() if "c4bench" in words]


def connected(trust):
    """The hosts whose agents the master has on its health page."""
    tls = client_context(*(f"{trust}/{name}" for name in ("ca.pem", "observer.pem", "observer.key")))
    tls.check_hostname = False
    with urllib.request.urlopen(f"https://127.0.0.1:{PORT}/health", context=tls, timeout=10) as answer:
        agents = json.load(answer)["agents"]
    return [name for name, agent in agents.items() if agent["connected"]]


def test_another_host_answers(host, clean):
    """A host with an unknown key is sent nothing: the run is refused before it begins, and the fix is named."""
    known = host.inventory.with_name("known_hosts")
    right = known.read_text()
    other = host.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    address, kind, _ = right.split()
    known.write_text(f"{address} {kind} {other.with_suffix('.pub').read_text().split()[1]}\n")
    before = host.made.files()
    try:
        code, said = host.pytest(*UNDER_A_FAULT)
    finally:
        known.write_text(right)
    assert code == 3, said
    assert "Host key verification failed" in said
    clean(host.made.files() == before, "wrong host key")


def test_a_deployment_meets_a_full_disk(tmp_path, clean):
    """The word is the disk's; no agent runs, and teardown leaves nothing."""
    with netns_hosts.netns_hosts(1, tmp_path, FACTS) as made:
        host = Deployed(made, tmp_path, SCENARIO)
        before = host.made.files()
        host.run("mount -t tmpfs -o size=1m disk /opt")
        with pytest.raises(UnhealthyError, match="No space left on device"):
            host.play("deploy")
        assert host.run("pgrep -u c4bench") == ""
        host.play("teardown")
        left = host.run("ls -A /opt; umount /opt; id -u c4bench")
        assert host.play("teardown") == 0
        assert left == ""
        clean(host.made.files() - {"/run/mount"} == before, "disk full")  # which mount(8) has made, at our word


@pytest.mark.skipif(bool(netns_systemd.missing()), reason=netns_systemd.missing())
def test_the_host_restarts_in_mid_run(tmp_path, clean):
    """Neither fault nor reservation outlives a restart; the agent is back by itself, and nothing is to heal."""
    with netns_hosts.netns_hosts(1, tmp_path, FACTS, systemd=True) as made:
        host = Deployed(made, tmp_path, SCENARIO)
        host.play("deploy")
        host.run(NIC)
        before = host.listing()
        session = broken(host)
        running = next(session)
        host.made.reboot()
        host.run(NIC)
        (host.folder / "go").touch()
        said, _ = running.communicate(timeout=120)
        assert running.returncode == 3, said
        assert "UnhealthyError: n1:" in said
        assert host.play("check") == 0
        assert host.fault("status") == (0, "")
        clean(host.listing() == before, "host restarted")
        assert next(session, None) is None
