"""The fabric as commands, and the routing that follows dead legs."""

import struct

import msgspec
import pytest

from c4bench.lab import topology_file
from c4bench.lab.guest import fabric, flow_control, routing
from c4bench.lab.topology import EcnMarking, IcmpLimits, next_hops
from c4bench.lab.topology_file import load

CLOS = load("clos-2x4")


def test_leaf_spreads_over_every_spine_and_withdraws_a_dead_one():
    """A leaf's route to another names each usable spine once; without any it is unreachable."""

    def of_leaf0(dead=(), unusable=()):
        return fabric.route_commands(next_hops(CLOS, set(dead), set(unusable))["leaf0"])

    assert of_leaf0() == [
        "route replace 10.1.0.0/16 nexthop via 172.16.0.2 dev up0 nexthop via 172.16.0.6 dev up1 "
        "nexthop via 172.16.0.10 dev up2 nexthop via 172.16.0.14 dev up3"
    ]
    assert "172.16.0.6" not in of_leaf0(dead=[1])[0]  # the leaf's own link to spine 1
    assert "172.16.0.6" not in of_leaf0(dead=[5])[0]  # the other leaf's
    assert "172.16.0.6" not in of_leaf0(unusable=[(1, "leaf0")])[0]
    assert "172.16.0.6" in of_leaf0(unusable=[(5, "leaf1")])[0]  # which leaf0 has not heard of
    assert of_leaf0(dead=[0, 1, 2, 3]) == ["route replace unreachable 10.1.0.0/16"]


def test_every_port_is_shaped_to_its_rate():
    """Both ends of every link carry a shaper at the link's rate, and nothing else does."""
    shaped = [line for lines in fabric.tc_commands(CLOS).values() for line in lines]
    assert len(shaped) == 2 * len(CLOS.links) + 2 * len(CLOS.ports)
    assert all("tbf rate 10000000000bit" in line for line in shaped)


def test_the_rate_of_a_connectx_is_out_of_reach_of_its_hosts_tc():
    """The shaper is inside the NIC, on the port below the host's interface; a reset of the NIC leaves it there."""
    text = (topology_file.DIRECTORY / "clos-2x4.yml").read_text() + "nics: connectx-6\n"
    twin = topology_file.parse(text, "mine.yml")
    shaped, port = fabric.tc_commands(twin), twin.ports[0]
    assert [line for host in twin.hosts for line in shaped[host.name]] == []
    assert shaped["h0.nics"] == shaped["h0.nics"][:1] != []
    assert "dev h0n0w root tbf rate 10000000000bit" in shaped["h0.nics"][0]
    assert fabric.ip_commands(twin)["h0.nics"] == [
        "link add link h0n0w name h0n0 netns h0 mtu 4200 type macvlan mode passthru"
    ]
    assert not [line for line in fabric.nic_reset(port, "ifb0")["tc"] if "tbf" in line]
    assert shaped["h0.nics"][0] in fabric.wire_reset(port)["tc"]
    assert [nic.device for host in twin.hosts for nic in host.nics] == [f"mlx5_{number}" for number in range(8)]


def test_switches_mark_and_nics_do_not():
    """With `ecn` every switch's port marks below its shaper, and no NIC's; ports of links with a delay do not."""
    marking = msgspec.structs.replace(CLOS, ecn=EcnMarking(50_000, 200_000, 0.1))
    batches = fabric.tc_commands(marking)
    lines = [line for switch in CLOS.switches for line in batches[switch.name] if " red " in line]
    assert len(lines) == 2 * len(CLOS.links) + len(CLOS.ports)
    assert all("parent 1:1" in line and "min 50000 max 200000 probability 0.1" in line for line in lines)
    assert not any(" red " in line for host in CLOS.hosts for line in batches[host.name])
    long = fabric.tc_commands(msgspec.structs.replace(load("sites-2"), ecn=EcnMarking()))
    assert not any("dev side0" in line and " red " in line for line in long["border0"])


def test_ports_pause_where_the_topology_says_so():
    """With `pfc` every port has a queue of each priority, below what marks; not where packets are under way for long.

    Its settings name the priorities by their bits, and only switches have a watchdog.
    """
    text = (topology_file.DIRECTORY / "sites-2.yml").read_text()
    for ecn, parent in (("", "1:1"), ("ecn: {}\n", "10:1")):
        sites = topology_file.parse(f"{text}{ecn}pfc: {{priorities: [3, 5], watchdog_s: 0.2}}\n", "mine.yml")
        lines = [(name, line) for name, lines in fabric.tc_commands(sites).items() for line in lines if " pfc" in line]
        short = [link for link in sites.links if not link.delay_s]
        assert len(lines) == 2 * len(short) + 2 * len(sites.ports) < 2 * len(sites.links) + 2 * len(sites.ports)
        hosts = {host.name for host in sites.hosts}
        assert {line.split()[5] for name, line in lines if name not in hosts} == {parent}
        assert (
            f"qdisc replace dev {sites.ports[0].netdev} parent 1:1 pfc" in fabric.nic_reset(sites.ports[0], "i")["tc"]
        )
    settings = flow_control.settings(sites)
    assert "p0 lossless 40" in settings["leaf0"]
    assert "p0 detect_us 200000" in settings["leaf0"]
    assert "h0n0 detect_us 0" in settings["h0"]
    assert not any("side0" in line for line in settings["border0"])
    assert flow_control.settings(CLOS) == {}


def test_counts_of_priorities_are_read_by_port():
    """Of the lines of /proc/net/pfc those with counts are read: eight of a port, in order."""
    waiting = "held 5 queued 6 dropped 1 storm 1 detected 2 restored 1 shape 0"
    counted = f"rx_pause {{}} rx_pause_us 92 tx_pause 0 tx_pause_us 0 packets 7 bytes 700 {waiting}"
    text = "p0 settings rate 10000000000 lossless 8\np0 dscp 0 0 1\n"
    text += "".join(f"p0 priority {number} {counted.format(10 + number)}\n" for number in range(8))
    (found,) = flow_control.counts(text).values()
    assert [one.rx_pause for one in found] == [*range(10, 18)]
    assert (found[3].rx_pause_us, found[3].held, found[3].dropped, found[3].detected) == (92, 5, 1, 2)


def test_a_delay_is_added_to_the_rate_on_both_ends_of_its_link():
    """Only the long link delays, each way, behind its shaper, with room for all packets that are under way."""
    sites = load("sites-2")
    lines = [(name, line) for name, lines in fabric.tc_commands(sites).items() for line in lines if "netem" in line]
    assert [name for name, _ in lines] == ["border0", "border1"]
    assert all("dev side0 parent 1:1 netem delay 5000us" in line for _, line in lines)
    assert all(int(line.rpartition(" ")[2]) >= 2 * 10e9 * 0.005 / 8 / 4200 for _, line in lines)


def test_every_port_has_the_burst_of_the_file():
    """16 KiB pass at once, or what the file says: at switches, at NICs, and at a NIC that was reset."""
    text = (topology_file.DIRECTORY / "clos-2x4.yml").read_text()
    for burst_bytes, made in ((16384, text), (4400, f"{text}burst_bytes: 4400\n")):
        topology = topology_file.parse(made, "mine.yml")
        shaped = [line for lines in fabric.tc_commands(topology).values() for line in lines]
        shaped += fabric.nic_reset(topology.ports[0], "ifb0")["tc"]
        assert {line.split(" burst ")[1].split()[0] for line in shaped if "tbf" in line} == {str(burst_bytes)}


def test_every_tier_hashes_other_fields():
    """Two tiers with the same fields would choose alike, so that a spine's flows would share one of its links."""
    tree = load("fat-tree-2x2")
    assert [switch.tier for switch in tree.switches] == [1] * 4 + [2] * 4 + [3] * 4
    assert len(set(fabric._HASH_FIELDS)) == len(fabric._HASH_FIELDS) >= 3


def test_neighbours_are_permanent_at_both_ends_of_every_link():
    """No address resolution is left to chance: it would cost a second at each first packet."""
    lines = [line for lines in fabric.ip_commands(CLOS).values() for line in lines if line.startswith("neighbour")]
    assert len(lines) == 2 * len(CLOS.links) + 2 * len(CLOS.ports)
    assert all(line.endswith("nud permanent") for line in lines)


def test_a_leaf_port_that_comes_back_knows_its_nic():
    """The kernel forgets a permanent neighbour when the link goes down, so setting a leaf's port up sets it again.

    Resolving it instead would delay senders to the NIC by up to a second after the next loss of its carrier.
    """
    port = CLOS.ports[5]
    up, neighbour = fabric.switch_port_up(port)
    assert up == "link set p1 up"
    assert neighbour == "neighbour replace 10.1.1.1 lladdr 02:c4:01:01:00:01 dev p1 nud permanent"
    assert neighbour in fabric.ip_commands(CLOS)["leaf1"]


def link_message(name, flags, kind=16):
    """An rtnetlink link message as the kernel sends it."""
    label = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(label), 3) + label
    attribute += b"\0" * (-len(attribute) % 4)
    body = struct.pack("=BBHiII", 0, 0, 1, 7, flags, 0) + attribute
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_link_messages_are_read_whole_or_not_at_all():
    """State changes are read from a datagram of several messages; other kinds and torn ends are passed over."""
    data = link_message("down0", 0x40) + link_message("down1", 0, kind=20) + link_message("down1", 0)
    assert routing.link_states(data) == [("down0", True), ("down1", False)]
    assert routing.link_states(data[:20]) == []
    assert routing.link_states(b"") == []


class Recorded(routing.Routing):
    """Routing whose rewrites are noted instead of said to the kernel."""

    def __init__(self, topology):
        self._topology = topology
        self._links = {(link.upper.switch, link.upper.interface): link for link in topology.links}
        self._dead = set()
        self._down = set()
        self._due = []
        self.rewrites = []

    def _rewrite(self, changed):
        self.rewrites.append([(link.lower.switch, link.lower.interface) for link in changed])


def test_a_dead_leg_is_withdrawn_late_and_once(monkeypatch):
    """Routes change `withdraw_s` after the event, not before, and not again for a repeated event."""
    now = [100.0]
    monkeypatch.setattr(routing.time, "monotonic", lambda: now[0])
    routes = Recorded(CLOS)
    routes.note("spine2", "down1", up=False)
    routes.note("spine2", "down1", up=False)
    assert routes.due_in_s() == pytest.approx(CLOS.withdraw_s)
    routes.apply_due()
    assert routes.rewrites == []
    now[0] += CLOS.withdraw_s
    routes.apply_due()
    assert routes.rewrites == [[("leaf1", "up2")]]
    assert routes.due_in_s() is None
    routes.note("spine2", "lo", up=False)
    assert routes.due_in_s() is None


def test_a_hosts_namespace_has_all_of_its_nics():
    """A NIC is configured in its host's namespace, except for the cable, and its RDMA device is moved there."""
    rails = load("rails-4")
    batches, rdma = fabric.ip_commands(rails), fabric.rdma_commands(rails)
    assert not [line for line in batches[""] if line.startswith(("rule", "route", "neighbour"))]
    assert fabric.tc_commands(rails).keys() == batches.keys() - {""}
    for port in rails.ports:
        nic = port.nic
        about = [line for line in batches[nic.host] if f" {nic.netdev} " in f"{line} " or f" {nic.address} " in line]
        assert sorted(line.split()[0] for line in about) == [
            "address",
            "link",
            "neighbour",
            "route",
            "route",
            "rule",
            "rule",
        ]
        assert f"dev set {nic.device} netns {nic.host}" in rdma[""]
    assert list(rdma)[-1] == ""


def test_local_addresses_are_looked_up_after_the_nics_own_tables():
    """Else a packet from one NIC of a host to another would not leave the host."""
    lines = [line.split() for line in fabric.ip_commands(load("rails-4"))["h0"]]
    rules = [line for line in lines if line[:2] == ["rule", "add"]]
    (local,) = [int(line[line.index("pref") + 1]) for line in rules if line[-1] == "local"]
    own = [int(line[line.index("pref") + 1]) for line in rules if line[-1] != "local"]
    assert len(own) == 8
    assert max(own) < local
    assert lines[-1] == ["rule", "del", "pref", "0"]


def test_switches_limit_icmp_errors_as_the_topology_says():
    """A rate becomes the kernel's setting; without answers the wait for one outlasts any run."""
    limits = fabric.icmp_settings(IcmpLimits(ratelimit_ms=250, msgs_per_sec=40, msgs_burst=7))
    assert limits == {"ipv4/icmp_ratelimit": "250", "ipv4/icmp_msgs_per_sec": "40", "ipv4/icmp_msgs_burst": "7"}
    assert int(fabric.icmp_settings(IcmpLimits(answers=False))["ipv4/icmp_ratelimit"]) >= 24 * 3600 * 1000


def test_switches_answer_by_address_or_name_the_interface():
    """A switch answers from the address that a probe arrived at, unless it is to name the interface."""
    assert fabric.answer_settings(IcmpLimits()) == {"ipv4/icmp_errors_use_inbound_ifaddr": "1"}
    assert fabric.answer_settings(IcmpLimits(interfaces=True)) == {"ipv4/icmp_errors_extension_mask": "1"}


def test_a_bond_hashes_flows_over_its_ports_and_both_leaves_are_its_gateway():
    """The host has one bond of two ports with one address; each leaf has the gateway's address after its own."""
    bonded = load("bonds-2")
    batches, rdma = fabric.ip_commands(bonded), fabric.rdma_commands(bonded)
    host = batches["h0"]
    (made,) = [line for line in host if " type bond " in line]
    assert made.startswith("link add h0n0 ")
    assert "mode balance-xor xmit_hash_policy layer3+4" in made
    assert [line for line in host if " master " in line] == [f"link set h0n0{port} master h0n0" for port in "ab"]
    assert host.index(made) < host.index("address add 10.4.0.1/24 dev h0n0")
    for leaf, own in (("leaf0", 253), ("leaf1", 252)):
        added = [line.split()[2] for line in batches[leaf] if line.startswith("address") and line.endswith("dev p0")]
        assert added == [f"10.4.0.{own}/24", "10.4.0.254/24"]  # ICMP errors carry the first
    macs = {line.split("peer name p0 ")[1].split(" ")[5] for line in batches[""] if "peer name p0 netns leaf" in line}
    assert len(macs) == 2  # one for both leaves of each pair
    assert rdma["h0"] == ["link add h0r0 type rxe netdev h0n0"]
    shaped = [line for lines in fabric.tc_commands(bonded).values() for line in lines]
    assert sum("tbf rate 5000000000bit" in line for line in shaped) == 2 * len(bonded.ports)
