"""What the injector reads of a host, a NIC and a switch, from what the tools there print."""

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import NIC, NOQUEUE, TBF, target

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inject import interfaces, targets
from c4bench.model.fabric import Nic
from c4bench.model.fault import FaultRequest, SwitchPort

ADDRESS = [
    {
        "ifname": "h5n0",
        "mtu": 4200,
        "addr_info": [
            {"family": "inet", "scope": "global", "local": "10.1.1.1", "valid_life_time": 4, "preferred_life_time": 3},
            {"family": "inet6", "scope": "link", "local": "fe80::1"},
            {"family": "inet6", "scope": "global", "local": "fd00::5", "tentative": True},
        ],
    }
]
TEXTS = """\
10.1.1.254 lladdr 02:c4:01:01:00:fe PERMANENT
default via 10.1.1.254 dev h5n0 table 1101
10.3.0.0/24 via 10.1.1.254 dev h5n0 linkdown
10.4.0.0/24 dev h5n01 scope link
10.9.0.0/24 proto static
\tnexthop via 10.1.1.254 dev h5n0 weight 1
\tnexthop via 10.2.1.254 dev h5n1 weight 1 dead
10.6.0.0/16 nhid 9 via 10.1.1.254 dev h5n0 proto bgp metric 20
10.8.0.0/16 nhid 24 proto bgp metric 20
\tnexthop via 10.1.1.254 dev h5n0 weight 1
\tnexthop via 10.2.1.254 dev h5n1 weight 1
10.7.0.0/24
\tnexthop via 10.2.1.254 dev h5n1 weight 1
\tnexthop via 10.2.2.254 dev h5n2 weight 1
fd00::/64 dev h5n0 proto kernel metric 256 pref medium
fd10::/64 via fd00::fe dev h5n0 metric 1024 pref medium
"""


class Tools:
    """Answers the commands of a host by their first words, and keeps them."""

    def __init__(self, qdisc=TBF):
        self.asked = []
        self.printed = {
            "ip -json address": json.dumps(ADDRESS),
            "tc -raw -json": qdisc,
            "ip -batch -": TEXTS,
            "tc -json filter": '[{"pref":1}]',
        }

    def __call__(self, argv, netns, stdin=""):
        self.asked.append((" ".join(argv), netns, stdin))
        return self.printed[" ".join(argv[:3])]


@pytest.fixture
def tools(monkeypatch):
    tools = Tools()
    monkeypatch.setattr(interfaces, "run", tools)
    return tools


def test_a_listing_has_what_a_fault_may_change_and_nothing_that_moves_by_itself(tools):
    """Addresses without lifetimes and without the kernel's own; permanent neighbours; routes by kind, without state."""
    sections = interfaces.listing(NIC)
    (link,) = json.loads(sections["address"])
    assert link["addr_info"] == [
        {"family": "inet", "scope": "global", "local": "10.1.1.1"},
        {"family": "inet6", "scope": "global", "local": "fd00::5"},
    ]
    assert sections["qdisc"] == TBF
    assert sections["filter"] == ""
    assert sections["neighbour"] == "10.1.1.254 lladdr 02:c4:01:01:00:fe PERMANENT\n"
    assert sections["route"] == "default via 10.1.1.254 dev h5n0 table 1101\n10.3.0.0/24 via 10.1.1.254 dev h5n0\n"
    assert sections["route6"] == "fd10::/64 via fd00::fe dev h5n0 metric 1024 pref medium\n"
    assert sections["multipath"] == (
        "10.7.0.0/24 nexthop via 10.2.1.254 dev h5n1 weight 1 nexthop via 10.2.2.254 dev h5n2 weight 1\n"
        "10.9.0.0/24 proto static nexthop via 10.1.1.254 dev h5n0 weight 1 nexthop via 10.2.1.254 dev h5n1 weight 1\n"
    )
    assert {netns for _, netns, _ in tools.asked} == {None}
    assert tools.asked[-1][2] == "neighbour show dev h5n0 nud permanent\nroute show table all\n"


@pytest.mark.parametrize("hook", ["ingress", "clsact"])
def test_filters_are_listed_where_there_can_be_some(tools, hook):
    """Of a switch's port, in the switch's own network namespace."""
    tools.printed["tc -raw -json"] = NOQUEUE[:-1] + f',{{"kind":"{hook}","handle":"ffff:"}}]'
    assert interfaces.listing(SwitchPort("leaf0", "up1", "/run/netns/leaf0"))["filter"] == '[{"pref":1}]'
    assert tools.asked[-1] == ("tc -json filter show dev up1 ingress", "/run/netns/leaf0", "")
    assert {netns for _, netns, _ in tools.asked} == {"/run/netns/leaf0"}


def test_an_examined_interface_has_its_index(tools):
    """The loopback interface of this machine is number 1; one that is not there is refused with where to look."""
    found = interfaces.examine(Nic("h5", 0, "", "lo", "127.0.0.1", 1e9))
    assert (found.index, found.ifb, found.mtu_bytes) == (socket.if_nametoindex("lo"), f"c4ifb{found.index}", 4200)
    assert [address.local for address in found.addresses()] == ["10.1.1.1"]
    assert len(tools.asked) == 3
    with pytest.raises(UsageError, match=r"h5/0: this host has no interface nosuch; see `ip link`"):
        interfaces.examine(Nic("h5", 0, "", "nosuch", "", 1e9))


@pytest.mark.parametrize("text", ["", "[WARN] old kernel", "[]", '[{"mtu": "x"}]', "[" * 5000])
def test_what_ip_and_tc_print_otherwise_is_refused_in_one_line(monkeypatch, text):
    """Other JSON than theirs, or none, is no traceback and no state of an interface."""
    monkeypatch.setattr(interfaces, "run", lambda *_: text)
    with pytest.raises(UnhealthyError, match="ip printed what c4bench cannot read") as raised:
        interfaces.listing(NIC)
    assert str(raised.value).isprintable()
    switch = FaultRequest("switch.down", "leaf0", netns="/run/netns/leaf0")
    for module, read in (
        (targets, lambda: targets.switch_ports(switch)),
        (targets, lambda: targets.management_interface(None)),
    ):
        monkeypatch.setattr(module, "run", lambda *_: "[1]")
        with pytest.raises(UnhealthyError, match="ip printed what c4bench cannot read"):
            read()


def test_the_neighbour_is_the_gateway_or_a_fixed_one():
    """A route's gateway comes first, then a permanent IPv4 neighbour; there may be none."""
    assert target().neighbour == "10.1.1.254"
    fixed = "fe80::9 lladdr 02:bb PERMANENT\n10.1.1.7 lladdr 02:aa PERMANENT\n"
    assert target(route="10.1.1.0/24 dev h5n0\n", neighbour=fixed).neighbour == "10.1.1.7"
    assert target(route="", neighbour="").neighbour == ""


def test_sections_of_several_interfaces_do_not_mix():
    """Each has the interface in its name; multipath routes are the host's, once for each network namespace."""
    port = interfaces.InterfaceTarget(SwitchPort("leaf0", "up1", "/run/netns/leaf0"), 3, target().printed)
    joined = interfaces.join_listings([target(multipath="m\n"), port])
    assert joined["ECMP"] == "m\n"
    assert joined["ECMP in /run/netns/leaf0"] == ""
    assert joined["h5n0: qdisc"] == joined["up1 in /run/netns/leaf0: qdisc"] == TBF
    assert not [name for name in joined if "multipath" in name]


def test_hardware_is_known_by_what_the_kernel_shows(monkeypatch, tmp_path):
    """Software RDMA has a parent, InfiniBand a link layer of that name; other devices go by their driver."""
    monkeypatch.setattr(interfaces, "_INFINIBAND", tmp_path / "ib")
    monkeypatch.setattr(interfaces, "_CHIPS", {"sonic": tmp_path / "sonic"})
    monkeypatch.setattr(interfaces, "_NETDEVS", tmp_path / "net")
    for device, layer in (("rxe0", "Ethernet"), ("ib0", "InfiniBand"), ("mlx5_0", "Ethernet")):
        (tmp_path / "ib" / device / "ports/1").mkdir(parents=True)
        (tmp_path / "ib" / device / "ports/1/link_layer").write_text(f"{layer}\n")
    (tmp_path / "ib/rxe0/parent").write_text("nic0\n")
    (tmp_path / "ib/mlx5_0/device").mkdir()
    (tmp_path / "drivers/mlx5_core").mkdir(parents=True)
    (tmp_path / "ib/mlx5_0/device/driver").symlink_to(tmp_path / "drivers/mlx5_core")

    def of(device):
        return interfaces.hardware(Nic("h5", 0, device, "n", "", 1e9))

    assert [of(device) for device in ("rxe0", "ib0", "mlx5_0", "")] == ["rxe", "ib", "mlx5_core", "ethernet"]
    with pytest.raises(Exception, match=r"h5/0: this host has no RDMA device gone; see `rdma link`"):
        of("gone")
    (tmp_path / "sonic").touch()
    assert interfaces.hardware(SwitchPort("leaf0", "Ethernet0")) == "sonic"
    assert of("") == "ethernet"
    (tmp_path / "net/swp1").mkdir(parents=True)
    (tmp_path / "net/swp1/phys_switch_id").write_text("e41d2d46fe40\n")
    ports = [SwitchPort("leaf0", "swp1"), SwitchPort("leaf0", "swp1", "/run/netns/leaf0")]
    (tmp_path / "sonic").unlink()
    assert [interfaces.hardware(port) for port in ports] == ["switchdev", "ethernet"]


def test_the_management_interface_is_that_of_the_default_route(monkeypatch):
    """A default route without a device, such as a blackhole, is none."""
    printed = [[{"dst": "default", "type": "blackhole"}, {"dst": "default", "dev": "eth7"}], [{"dst": "default"}], []]
    monkeypatch.setattr(targets, "run", lambda *_: json.dumps(printed.pop(0)))
    assert [targets.management_interface("/x") for _ in range(3)] == ["eth7", "", ""]


def test_memory_and_disk_are_what_an_ordinary_process_can_have(tmp_path):
    """MemAvailable in bytes, and the blocks that are free for unprivileged users."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    assert 1 << 20 < targets.memory_available_bytes() <= total
    # Where agents and the system write their logs, and where shared memory lives.
    assert (str(targets.LOGS), str(targets.MEMORY)) == ("/var/log", "/dev/shm")
    usage = os.statvfs(tmp_path)
    assert abs(targets.disk_available_bytes(tmp_path) - usage.f_bavail * usage.f_frsize) < 1 << 30


def test_a_host_is_examined_with_its_interfaces(monkeypatch, tmp_path):
    """Its NICs, its management interface if it has one, and its settings; a container's clock is another's too."""
    monkeypatch.setattr(targets.interfaces, "examine", lambda interface: SimpleNamespace(interface=interface))
    (tmp_path / "panic").write_text("5\n")
    (tmp_path / "sysrq").touch()
    monkeypatch.setattr(targets, "PANIC", tmp_path / "panic")
    monkeypatch.setattr(targets, "_SYSRQ", (tmp_path / "missing", tmp_path / "sysrq"))
    monkeypatch.setattr(targets, "LOGS", tmp_path)
    monkeypatch.setattr(targets, "management_interface", lambda netns: "eth0" if netns is None else "")
    found = targets.examine_host(FaultRequest("host.crash", "h5", nics=(NIC,)))
    assert found.management.interface == SwitchPort("h5", "eth0")
    assert [nic.interface for nic in found.nics] == [NIC]
    assert (found.panic, found.sysrq) == ("5", str(tmp_path / "sysrq"))
    inode = Path("/proc/self/ns/pid").stat().st_ino
    assert found.shared == (inode != 0xEFFFFFFC)
    monkeypatch.setattr(targets, "_FIRST_PID_NAMESPACE", inode)
    monkeypatch.setattr(targets, "management_interface", lambda _: "")
    alone = targets.examine_host(FaultRequest("host.crash", "h5"))
    assert (alone.management, alone.nics, alone.shared) == (None, (), False)
    assert alone.listing == {"kernel.panic": "5"}


def test_the_ports_of_a_switch_are_its_ethernet_interfaces_that_are_up(monkeypatch):
    """By name, without loopback and without the devices that faults make; where the switch lives."""
    links = [
        {"ifname": "up1", "link_type": "ether"},
        {"ifname": "lo", "link_type": "loopback"},
        {"ifname": "c4ifb7", "link_type": "ether"},
        {"ifname": "down0", "link_type": "ether"},
        {"ifname": "odd"},
    ]
    asked = []
    monkeypatch.setattr(targets, "run", lambda argv, netns: asked.append((argv[-1], netns)) or json.dumps(links))
    monkeypatch.setattr(targets.interfaces, "examine", lambda port: target(multipath=f"{port.netdev}\n"))
    request = FaultRequest("switch.down", "leaf0", netns="/run/netns/leaf0")
    assert targets.switch_ports(request) == [SwitchPort("leaf0", name, "/run/netns/leaf0") for name in ("down0", "up1")]
    assert asked == [("up", "/run/netns/leaf0")]
    examined = targets.examine_switch(request)
    assert [found.printed["multipath"] for found in examined.ports] == ["down0\n", "up1\n"]
    assert examined.listing["ECMP"] == "up1\n"

    def gone(*_):
        raise FileNotFoundError

    monkeypatch.setattr(targets, "run", gone)
    with pytest.raises(UsageError, match=r"there is no switch leaf0 here: no network namespace /run/netns/leaf0"):
        targets.switch_ports(request)
