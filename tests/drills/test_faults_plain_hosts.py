"""Faults on hosts that are no lab's, in real time and over real SSH: leases hold there too."""

import json
import os
import signal
import subprocess
import sys
import time

import netns_hosts
import pytest

from c4bench import remote
from c4bench.inventory import load

REASON = netns_hosts.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
LEASE_S, LATE_S = 3.0, 1.0
# From before the login until after the fault is in force.
SHARES = (0.1, 0.8)  # of the time from the command to the fault's effect
NIGHTLY_SHARES = (0.3, 0.5, 0.7, 0.9, 1.0)
NIC = """
ip link add nic0 type veth peer name far0
ip link set nic0 up; ip link set far0 up
ip address add 10.9.0.1/24 dev nic0; ip route add 10.10.0.0/16 via 10.9.0.254 dev nic0
"""


@pytest.fixture
def host(tmp_path):
    """A host with a NIC that is not its management interface; runs a command there, or `c4bench fault` here."""
    facts = {"disruptive": True, "python": sys.executable, "nics": [{"netdev": "nic0", "rate": "1gbit"}]}
    with netns_hosts.netns_hosts(1, tmp_path, facts) as made:
        found = Host(made.inventory, tmp_path)
        found.run(NIC)
        yield found


class Host:
    """The one host of an inventory."""

    def __init__(self, inventory, directory):
        self.inventory, self.directory = inventory, directory
        self.access = load(inventory).access["n1"]

    def run(self, command):
        with remote.connect("n1", self.access) as connection:
            return connection.run(["sh", "-c", command], timeout_s=30.0).stdout.decode()

    def fault(self, *words):
        argv = [sys.executable, "-m", "c4bench.cli.main", "fault", *words, "--json", f"--hosts={self.inventory}"]
        history = [f"--history={self.directory}/faults.jsonl"] if words[0] == "apply" else []
        return subprocess.Popen(
            [*argv, *history], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def listing(self):
        return self.run("ip -4 -json address show dev nic0 | sed 's/valid[^}]*//g'; ip route; tc qdisc show dev nic0")

    def audit(self, event):
        lines = self.run("cat /var/lib/c4bench/audit.jsonl 2>/dev/null || true").splitlines()
        return {line["id"]: line["time_s"] for line in map(json.loads, lines) if line["event"] == event}


@pytest.mark.parametrize("shares", [SHARES, pytest.param(NIGHTLY_SHARES, marks=pytest.mark.nightly)])
def test_a_killed_controller_leaves_a_lease_that_ends(host, shares):
    """Whenever the controller and its SSH are killed, the NIC is as it was no later than a second after the lease."""
    before = host.listing()
    begun_s = time.monotonic()
    kill(host, lambda controller: controller.stdout.readline())
    whole_s = time.monotonic() - begun_s
    for share in shares:
        kill(host, lambda _, after_s=share * whole_s: time.sleep(after_s))
    intents, ends = host.audit("intent"), host.audit("reverted")
    assert intents.keys() == ends.keys()
    assert max(ends[fault] - begun_s for fault, begun_s in intents.items()) <= LEASE_S + LATE_S
    assert host.fault("status").communicate() == (b"", b"")
    assert host.listing() == before


def kill(host, moment):
    """Begin a fault, kill its controller and the SSH under it when `moment` returns, and sit out what had begun."""
    known = host.audit("intent").keys()
    controller = host.fault("apply", "nic.down", "n1/0", "--last-nic", f"--lease={LEASE_S:g}s")
    moment(controller)
    os.killpg(controller.pid, signal.SIGKILL)
    controller.communicate()
    if host.audit("intent").keys() != known:
        time.sleep(LEASE_S + LATE_S)


def test_a_host_that_cannot_be_healed_is_named_and_left_alone(host):
    """A change that somebody makes during a fault is a residue: exit 3, and no fault until it is undone and checked."""
    held = host.fault("apply", "nic.down", "n1/0", "--last-nic", "--lease=8s")
    held.stdout.readline()
    host.run("ip address add 10.77.0.1/24 dev nic0")
    os.killpg(held.pid, signal.SIGINT)
    _, complaint = held.communicate()
    assert held.returncode == 3, complaint
    assert b"n1 is not as it was before nic.down on n1/0: - nic0: address" in complaint
    refused = host.fault("apply", "nic.down", "n1/0", "--last-nic")
    _, complaint = refused.communicate()
    assert refused.returncode == 3
    assert b"n1: n1 is quarantined since nic.down-" in complaint
    healing = host.fault("heal")
    assert b"not yet in its state before" in healing.communicate()[0]
    assert healing.returncode == 3
    host.run("ip address del 10.77.0.1/24 dev nic0")
    assert host.fault("heal").communicate() == (b"", b"")
    assert host.fault("status").communicate() == (b"", b"")


def test_what_would_cut_the_host_off_is_refused(host):
    """The management interface and the last NIC are refused on the host itself, by exit code 2."""
    refused = host.fault("apply", "nic.down", "n1/0")
    _, complaint = refused.communicate()
    assert refused.returncode == 2
    assert b"n1/0 is the last working NIC of n1" in complaint
    text = host.inventory.read_text().replace("nic0", "eth0")
    host.inventory.write_text(text)
    refused = host.fault("apply", "nic.down", "n1/0", "--last-nic")
    _, complaint = refused.communicate()
    assert refused.returncode == 2
    assert b"n1/0 carries your own session" in complaint
