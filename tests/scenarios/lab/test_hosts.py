"""The lab's hosts are hosts: their own names, files, devices and result."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c4bench import remote
from c4bench.lab.guest import fabric, supervisor
from c4bench.lab.spec import CONTROL_SOCKET


@pytest.fixture
def on(inventory):
    """Run a shell command on a host and return what it says."""

    def run(host, command):
        with remote.connect(host, inventory.access[host]) as connection:
            return connection.run(["sh", "-c", command], timeout_s=30.0).stdout.decode().strip()

    return run


def links(names):
    """Without the loopback and management links, and the bonding driver's file."""
    return set(names) - {"lo", "eth0", "bonding_masters"}


def listed(text):
    """The names of the interfaces that `ip -json link` tells of."""
    return [link["ifname"] for link in json.loads(text)]


def said(*argv):
    """What a command says here."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture(autouse=True)
def _in_lab():
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: these hosts are not a lab's, whose supervisor can crash and boot them")


def test_each_host_sees_only_itself(on, hosts):
    """A host has its own name and process tree, and in /sys and /dev only its own NICs."""
    host = hosts[1]
    assert on(host.name, "hostname; cat /etc/hostname").split() == [host.name] * 2
    assert on(host.name, "ls /sys/class/infiniband").split() == [nic.device for nic in host.nics]
    assert links(on(host.name, "ls /sys/class/net").split()) == {nic.netdev for nic in host.nics}
    assert len(on(host.name, "ls -I rdma_cm /dev/infiniband").split()) == len(host.nics)
    assert len(on(host.name, "ls /sys/class/infiniband_verbs").split()) == len(host.nics)
    assert "init" not in on(host.name, "cat /proc/[0-9]*/comm")


def test_the_tools_show_a_host_its_own_nics_and_nothing_else(on, hosts):
    """`ip`, `rdma` and verbs on a host list its NICs, with their addresses and its management link."""
    host = hosts[1]
    assert links(listed(on(host.name, "ip -json link"))) == {nic.netdev for nic in host.nics}
    addresses = {
        info["local"] for link in json.loads(on(host.name, "ip -4 -json address")) for info in link["addr_info"]
    }
    assert addresses == {"127.0.0.1", host.address, *(nic.address for nic in host.nics)}
    devices = {link["ifname"]: link["netdev"] for link in json.loads(on(host.name, "rdma -j link"))}
    assert devices == {nic.device: nic.netdev for nic in host.nics}
    listing = "from pyverbs.device import *; print(*(device.name.decode() for device in get_device_list()))"
    assert sorted(on(host.name, f"{sys.executable} -c '{listing}'").split()) == sorted(devices)


def test_the_lab_itself_has_no_nic(hosts):
    """Where the controller runs there is no RDMA device, no interface of a NIC, and no rule or route for one."""
    assert hosts
    assert json.loads(said("rdma", "-j", "link")) == []
    nics = {nic.netdev for host in hosts for nic in host.nics}
    assert not nics & set(listed(said("ip", "-json", "link")))
    assert [rule["table"] for rule in json.loads(said("ip", "-json", "rule"))] == ["local", "main", "default"]
    routes = json.loads(said("ip", "-4", "-json", "route", "show", "table", "all"))
    assert {route["dev"] for route in routes} <= {"lo", fabric.MANAGEMENT_BRIDGE}


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


@pytest.mark.nightly
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
    assert set(on(victim, "cat /sys/class/infiniband/*/ports/1/state").splitlines()) == {"4: ACTIVE"}
    cluster.wait_hosts([victim], 30.0)
