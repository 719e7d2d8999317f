"""What the fault scenarios share: an injector for hosts and switches alike, and the fabric's state to compare."""

import json
import shlex

import pytest

from c4bench import remote
from c4bench.inject import places
from c4bench.inject.controller import Injector

# Every interface's queues, filters, addresses and links, every route and fixed neighbour, and what runs of ours.
STATE = """
ip -json address show
tc -raw qdisc show; ip -4 route show table all; ip -6 route show table all; ip neighbour show nud permanent
"""
OURS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'c4bench.inject [a-z]*' || true"


@pytest.fixture
def fault_hosts(hosts):
    """The hosts on which faults are permitted."""
    return [host for host in hosts if host.disruptive]


@pytest.fixture
def nic_hosts(fault_hosts):
    """The hosts with a NIC on which faults are permitted."""
    if not (found := [host for host in fault_hosts if host.nics]):
        pytest.skip("no-rdma: no host that permits faults has a NIC (c4.nics is empty)")
    return found


@pytest.fixture
def switch_names(inventory):
    """The switches that c4bench can put faults on."""
    if not (found := [name for name in inventory.switches if inventory.facts[name].disruptive]):
        pytest.skip("no-switches: no switch of the inventory permits faults (c4.disruptive)")
    return found


@pytest.fixture
def injector(inventory, run_directory):
    """Faults for hosts and switches of the inventory."""
    return Injector(
        connect=lambda host: remote.connect(host, inventory.access[host]),
        python=lambda host: inventory.access[host].python,
        record=run_directory,
    )


@pytest.fixture
def path_injector(inventory, run_directory, crossings):
    """An injector whose faults of switches' ports are seen on the path of the data."""
    return Injector(
        connect=lambda host: remote.connect(host, inventory.access[host]),
        python=lambda host: inventory.access[host].python,
        record=run_directory,
        crossings=crossings,
    )


@pytest.fixture
def healed(run_directory):
    """How the fault that ended last did, as the run's history has it."""
    return lambda: [event for event in run_directory.events() if event["kind"] == "fault_healed"][-1]


@pytest.fixture
def on(inventory):
    """Run a shell command on a host or switch and return what it says."""

    def run(host, command):
        netns = inventory.access[host].netns
        inside = ["nsenter", f"--net={netns}"] if netns else []
        with remote.connect(host, inventory.access[host]) as connection:
            return connection.run([*inside, "sh", "-c", command], timeout_s=60.0).stdout.decode()

    return run


@pytest.fixture
def as_root(on, inventory):
    """As `on`, by root, also where one logs in as somebody else."""

    def run(host, command):
        root = "" if inventory.access[host].user in {"", "root"} else "sudo -n "
        return on(host, f"{root}sh -c {shlex.quote(command)}")

    return run


@pytest.fixture
def place(inventory):
    """A target by the words of the command line."""
    return lambda word: places.parse(word, inventory)


@pytest.fixture
def up_and_across(switch_names, inventory, hosts, on):
    """A link between two switches, and a port towards a host, by their neighbours: `leaf0/up1`, `leaf0/p0`."""
    ours = {nic.address for host in hosts for nic in host.nics}
    switch = switch_names[0]
    words = [line.split() for line in on(switch, "ip neighbour show").splitlines()]
    ports = {line[0]: line[line.index("dev") + 1] for line in words if "." in line[0]}
    stated = inventory.facts[switch].rates  # without the port of the management network
    ports = {address: port for address, port in ports.items() if port in stated or not stated}
    if not ports:
        pytest.skip(f"unsupported: {switch} knows no neighbours")
    across = next(port for address, port in sorted(ports.items()) if address not in ours)
    towards = next(port for address, port in sorted(ports.items()) if address in ours)
    return f"{switch}/{across}", f"{switch}/{towards}"


@pytest.fixture
def state(on, inventory, hosts):
    """The whole fabric, as text by place: two of them are equal when nothing is different."""

    def read():
        found = {switch: steady(on(switch, STATE)) for switch in inventory.switches}
        for host in hosts:
            found[host.name] = steady(on(host.name, STATE + OURS))
        return found

    return read


def steady(text):
    """Without what counts down, is said of a link's health in passing, or is a routing daemon's."""
    lines = []
    for line in (line for line in text.splitlines() if " proto bgp " not in line):
        lines += map(link_line, filter(ours, json.loads(line))) if line.startswith("[{") else [line.strip()]
    return sorted(lines)


def ours(link):
    """Not the way to the host."""
    return link["ifname"] not in {"lo", "eth0"}


def link_line(link):
    """What of a link shall stay."""
    return f"{link['ifname']} {link['mtu']} {link['flags']} {link.get('operstate')} {addresses(link)}"


def addresses(link):
    """The link's addresses."""
    return [(entry["local"], entry["prefixlen"]) for entry in link.get("addr_info", ())]
