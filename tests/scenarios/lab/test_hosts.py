"""The lab's hosts are hosts: their own names, files, devices and fate."""

import time
from pathlib import Path

import pytest

from c4bench import remote
from c4bench.lab.guest import supervisor
from c4bench.lab.spec import CONTROL_SOCKET


@pytest.fixture
def on(inventory):
    """Run a shell command on a host and return what it says."""

    def run(host, command):
        with remote.connect(host, inventory.access[host]) as connection:
            return connection.run(["sh", "-c", command], timeout_s=30.0).stdout.decode().strip()

    return run


@pytest.fixture(autouse=True)
def _in_lab():
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: these hosts are not a lab's, whose supervisor can crash and boot them")


def test_each_host_sees_only_itself(on, hosts):
    """A host has its own name and process tree, and in /sys and /dev only its own NICs."""
    host = hosts[1]
    assert on(host.name, "hostname; cat /etc/hostname").split() == [host.name] * 2
    assert on(host.name, "ls /sys/class/infiniband").split() == [nic.device for nic in host.nics]
    assert on(host.name, "ls /sys/class/net").split() == [nic.netdev for nic in host.nics]
    assert len(on(host.name, "ls /dev/infiniband").split()) == len(host.nics)
    assert "init" not in on(host.name, "cat /proc/[0-9]*/comm")


def test_what_a_host_writes_stays_there(on, hosts):
    """Files in /etc and /var/lib are a host's own: neither its neighbour nor the lab sees them."""
    first, second = hosts[0].name, hosts[1].name
    on(first, "echo mine | tee /etc/c4bench-mine /var/lib/c4bench-mine")
    assert on(second, "ls /etc/c4bench-mine /var/lib/c4bench-mine 2>/dev/null || true") == ""
    assert not Path("/etc/c4bench-mine").exists()


def test_agents_and_ranks_are_not_root(on, job):
    """The agent's socket and the telemetry that ranks write belong to a user of their own."""
    host = job.members[0].host
    owned = f"stat -c %U /run/c4bench/agent.sock /dev/shm/c4bench/{job.id}/*.ring"
    assert set(on(host, owned).split()) == {"c4bench"}


def test_a_crashed_host_is_gone_and_boots_as_new(on, hosts, cluster):
    """A crash says no goodbye and loses what was in memory; after a boot the host is as it was at first."""
    victim = hosts[-1].name
    cluster.wait_hosts([victim], 10.0)
    on(victim, "echo lost > /etc/c4bench-lost")
    supervisor.ask("crash", victim)
    with pytest.raises(Exception, match=victim):
        on(victim, "true")
    supervisor.ask("boot", victim)
    time.sleep(1.0)
    assert on(victim, "ls /etc/c4bench-lost 2>/dev/null || true") == ""
    assert on(victim, "cat /sys/class/infiniband/*/ports/1/state") == "4: ACTIVE"
    cluster.wait_hosts([victim], 30.0)
