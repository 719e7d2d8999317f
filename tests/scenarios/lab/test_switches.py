"""What is typed on the lab's SONiC switches over SSH happens to the traffic, and is gone when taken back.

Needs `--c4-topology rack-2x4`, or another topology with `switch_os: sonic`.
"""

import json
import time
from pathlib import Path

import pytest

from c4bench import remote
from c4bench.doctor import switches as doctor
from c4bench.doctor.lldp import compare_neighbours
from c4bench.lab.spec import CONTROL_SOCKET

APPLIED_S = 0.5  # more than the orchestrator takes
PATIENCE_S = 10.0
LLDP_S = 2.0  # lldpd waits for a second, as more may change


@pytest.fixture(autouse=True)
def _in_lab(inventory):
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: these hosts are not a lab's, whose switches may be changed at will")
    if not any(inventory.facts[switch].os == "sonic" for switch in inventory.switches):
        pytest.skip("unsupported: this lab's switches run nothing; give --c4-topology rack-2x4")


@pytest.fixture
def on(inventory):
    """Run a shell command on a switch as its user, or on a host, and return what it says."""

    def run(name, command):
        with remote.connect(name, inventory.access[name]) as connection:
            return connection.run(["sh", "-c", command], timeout_s=30.0).stdout.decode().strip()

    return run


@pytest.fixture
def set_on(on):
    """`config` on a switch; waits until it is applied, and takes all back at the end."""
    changed = set()

    def change(switch, *words):
        changed.add(switch)
        on(switch, f"sudo config {' '.join(words)}")
        time.sleep(APPLIED_S)

    yield change
    for switch in changed:
        on(switch, "sudo config reload -y /etc/sonic/first.json")
    time.sleep(APPLIED_S)


@pytest.fixture(autouse=True)
def _first(inventory, _in_lab, on):
    """Every switch has its configuration of now in a file."""
    for switch in inventory.switches:
        on(switch, "sudo config save -y /etc/sonic/first.json")


def port_of(inventory, host):
    """The switch and the port that a host's first NIC is cabled to."""
    cable = next(port for port in inventory.graph.host_ports if port.host == host)
    return cable.switch, cable.port


def status(on, switch, port):
    """(oper, admin) of a port, as the switch prints them."""
    words = on(switch, f"show interfaces status {port}").splitlines()[-1].split()
    return words[7], words[8]


def uplink_of(inventory):
    """A cable between switches, with the ports at both ends."""
    return inventory.graph.trunks[0]


@pytest.mark.needs(hosts=8)
@pytest.mark.usefixtures("job")
def test_c4d_names_the_nic_whose_port_is_shut_down_over_ssh(c4d, inventory, hosts, on, set_on):
    """An operator shuts a port down on the switch: C4D names the NIC at its other end, and the port can be started."""
    time.sleep(1.5)
    victim = hosts[2].name
    switch, port = port_of(inventory, victim)
    assert status(on, switch, port) == ("up", "up")
    on(switch, f"sudo config interface shutdown {port}")
    found = c4d.wait(PATIENCE_S)
    # The link to the NIC is as right as the NIC, where paths are known.
    assert found.component.name in {f"{victim}/0", hosts[2].nics[0].address}
    assert status(on, switch, port) == ("down", "down")
    set_on(switch, "interface", "startup", port)
    assert status(on, switch, port) == ("up", "up")


@pytest.mark.nightly
def test_doctor_misses_the_cable_whose_port_is_shut_down_over_ssh(inventory, hosts, set_on):
    """LLDP of real daemons shows every cable as stated, and not the one whose port is shut down."""

    def differences():
        reports = doctor.ask_all(inventory, apart_s=0.1)
        assert [report.problems for report in reports if report.problems] == []
        seen = {report.switch: report.neighbours for report in reports}
        return [(one.a, one.b, one.kind) for one in compare_neighbours(inventory.graph, hosts, seen)]

    trunk = uplink_of(inventory)
    assert differences() == []
    set_on(trunk.a, "interface", "shutdown", trunk.a_port)
    time.sleep(LLDP_S)
    assert differences() == [(trunk.a, trunk.b, "missing")]
    set_on(trunk.a, "interface", "startup", trunk.a_port)
    time.sleep(31)  # LLDP is sent every 30 s
    assert differences() == []


ECHO = """
import sys
from c4bench.verbs.cm_echo import CmEcho
with CmEcho(sys.argv[1], sys.argv[2], int(sys.argv[3])) as echo:
    echo.send(0)
    echo.receive(0.5, lambda: bool(echo.arrived_s))
    print(len(echo.arrived_s))
"""


@pytest.fixture
def echoes(on, inventory, hosts):
    """Whether a packet of RDMA goes from one host's first NIC to another's and back."""

    def ask(source, target):
        near, far = hosts[source].nics[0], hosts[target].nics[0]
        program = f"{inventory.access[near.host].python} -c '{ECHO}'"
        return on(near.host, f"{program} {near.address} {far.address} {near.dscp << 2}") == "1"

    return ask


@pytest.mark.nightly
def test_an_access_list_drops_roce_at_one_port_and_one_stage(inventory, hosts, on, set_on, echoes):
    """A rule on UDP 4791 stops RDMA through its port only; its counter shows it; a rule that cannot be is inactive."""
    switch, port = port_of(inventory, hosts[0].name)
    set_on(switch, "acl", "add", "table", "DROP", "L3", "-p", port, "-s", "egress")
    rule = "PRIORITY 9999 PACKET_ACTION DROP IP_PROTOCOL 17 L4_DST_PORT 4791"
    assert echoes(1, 0)
    on(switch, f"sudo sonic-db-cli CONFIG_DB HMSET 'ACL_RULE|DROP|ROCE' {rule}")
    on(switch, f"sudo sonic-db-cli CONFIG_DB HMSET 'ACL_RULE|DROP|TCP' {rule} TCP_FLAGS 2/2")
    time.sleep(APPLIED_S)
    assert on(switch, "sonic-db-cli STATE_DB HGET 'ACL_RULE_TABLE|DROP|ROCE' status") == "Active"
    assert on(switch, "sonic-db-cli STATE_DB HGET 'ACL_RULE_TABLE|DROP|TCP' status") == "Inactive"
    assert not echoes(1, 0)
    assert echoes(1, 2)
    time.sleep(11)  # its counters are read every 10 s
    assert on(switch, "aclshow -a").splitlines()[2].split()[3] != "0"
    on(switch, "sudo sonic-db-cli CONFIG_DB DEL 'ACL_RULE|DROP|ROCE'")
    time.sleep(APPLIED_S)
    assert echoes(1, 0)


@pytest.mark.nightly
def test_what_is_not_saved_is_gone_after_a_restart(inventory, hosts, on, echoes):
    """`config save`, another change and `reboot`: the saved one holds, the other does not, and traffic flows again."""
    switch, port = port_of(inventory, hosts[0].name)
    other = port_of(inventory, hosts[1].name)[1]
    boot = on(switch, "cat /proc/sys/kernel/random/boot_id")
    on(switch, f"sudo config interface shutdown {other}; sudo config save -y; sudo config interface mtu {port} 1500")
    on(switch, "sudo systemd-run --quiet --unit=later --on-active=30s true; sudo reboot")
    time.sleep(5)
    assert on(switch, "cat /proc/sys/kernel/random/boot_id") != boot
    assert status(on, switch, other) == ("down", "down")
    assert json.loads(on(switch, "sonic-cfggen -d --print-data"))["PORT"][port]["mtu"] == "9100"
    assert "later" not in on(switch, "systemctl list-timers")
    assert echoes(2, 0)
    assert not echoes(2, 1)
    on(switch, f"sudo rm /etc/sonic/config_db.json; sudo config interface startup {other}")
    time.sleep(APPLIED_S)
    assert echoes(2, 1)


DATAGRAM = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, 10, 3)  # IP_MTU_DISCOVER: never a fragment
sender.bind((sys.argv[1], 0))
sender.sendto(bytes(int(sys.argv[3])), (sys.argv[2], 9))
"""


def received(on, nic):
    """How many packets a NIC has received."""
    return int(on(nic.host, f"cat /sys/class/net/{nic.netdev}/statistics/rx_packets"))


@pytest.mark.nightly
def test_the_mtu_of_one_port_stops_large_packets_only(inventory, hosts, on, set_on):
    """A port with an MTU of 1500 lets small packets pass and drops full ones, without a fragment."""
    switch, port = port_of(inventory, hosts[0].name)
    near, far = hosts[0].nics[0], hosts[1].nics[0]

    def passes(size):
        before = received(on, near)
        program = f"{inventory.access[far.host].python} -c '{DATAGRAM}' {far.address} {near.address} {size}"
        on(far.host, program)
        return received(on, near) - before == 1

    assert passes(4000)
    set_on(switch, "interface", "mtu", port, "1500")
    assert not passes(4000)
    assert passes(1000)


@pytest.mark.nightly
def test_a_unit_on_the_switch_runs_after_the_session_has_ended(inventory, on):
    """A timer that was started over SSH shuts a port down later, when nobody is logged in; a stopped one never does."""
    trunk = uplink_of(inventory)
    down = f"config interface shutdown {trunk.a_port}"
    on(trunk.a, f"sudo systemd-run --quiet --collect --unit=first --on-active=2s {down}")
    on(trunk.a, f"sudo systemd-run --quiet --collect --unit=second --on-active=3s {down.replace('down', 'up')}")
    on(trunk.a, "sudo systemctl --quiet stop second.timer")
    assert status(on, trunk.a, trunk.a_port) == ("up", "up")
    time.sleep(4)
    assert status(on, trunk.a, trunk.a_port) == ("down", "down")
    on(trunk.a, f"sudo config interface startup {trunk.a_port}")
    time.sleep(APPLIED_S)
    assert status(on, trunk.a, trunk.a_port) == ("up", "up")
