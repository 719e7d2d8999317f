"""Topology files: what they mean, and how a wrong one is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.errors import UsageError
from c4bench.lab.topology_file import DIRECTORY, Attach, HostGroup, LeafSpine, Rates, Tier, load, made, names, parse

GOOD = DIRECTORY.joinpath("clos-2x4.yml").read_text()


@pytest.mark.parametrize("name", names())
def test_named_topologies_are_valid_and_named_as_their_files(name):
    """Every topology that comes with the package loads, and says its own name."""
    assert load(name).name == name


def test_every_asked_for_topology_is_there():
    """The names that documentation and scenarios use exist."""
    asked = {"pair", "clos-2x4", "clos-2x8", "clos-4x4", "clos-2x4-2to1", "rails-4", "rails-8", "dual-plane"}
    assert asked <= set(names())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("hosts: {count: 8", "hosts: {count: 99"), "hosts.count"),
        (("hosts: {count: 8", "hosts: {count: 7"), "do not divide"),
        (("10gbit", "10 parsecs"), "rates"),
        (("10gbit", "1000gbit"), "100mbit to 100gbit"),
        (("spine: {count: 4}", "spine: {count: 4, colour: red}"), "colour"),
        (("leaf: {count: 2}", "leaf: {count: two}"), "mine.yml:3: leaf.count: "),
        (("attach: block", "attach: rail"), "one leaf for each"),
        (("attach: block", "attach: plane"), "2 NICs"),
        (("leaf:", "leaf: ["), "line"),
        (("leaf:", "icmp: {ratelimit_ms: -1}\nleaf:"), "icmp.ratelimit_ms"),
        (("leaf:", "icmp: {answers: perhaps}\nleaf:"), ": icmp.answers: "),
        (("leaf:", "icmp: {burst: 5}\nleaf:"), "burst"),
        (("leaf:", "dscp: 64\nleaf:"), ": dscp: "),
        (("leaf:", "spray_dscp: 64\nleaf:"), ": spray_dscp: "),
        (("leaf:", "ecn: {min_bytes: 500000}\nleaf:"), ": ecn.min_bytes: "),
        (("leaf:", "ecn: {probability: 0}\nleaf:"), ": ecn.probability: "),
        (("leaf:", "ecn: {kmin: 5}\nleaf:"), ": ecn.kmin: "),
        (("leaf:", "pfc: {priorities: []}\nleaf:"), ": pfc.priorities: "),
        (("leaf:", "pfc: {priorities: [8]}\nleaf:"), ": pfc.priorities"),
        (("leaf:", "pfc: {xon_bytes: 300000}\nleaf:"), ": pfc.xoff_bytes: "),
        (("leaf:", "pfc: {headroom_bytes: 0}\nleaf:"), ": pfc.headroom_bytes: "),
        (("leaf:", "pfc: {watchdog_s: 60}\nleaf:"), ": pfc.watchdog_s: "),
        (("leaf:", "spray_dscp: CS1\nleaf:"), ": spray_dscp: "),
        (("leaf:", "burst_bytes: 4000\nleaf:"), ": burst_bytes: "),
        (("leaf:", "nics: connectx-5\nleaf:"), ": nics: "),
        (("leaf:", "gpus: [0, 1]\nleaf:"), ": gpus[1]: 1: host h0 has no NIC 1"),
        (("leaf:", "gpus: [0, 0, 0, 0, 0, 0, 0, 0, 0]\nleaf:"), ": gpus: 9 GPUs"),
        (("leaf:", "inside: {rate: 900gbit}\nleaf:"), ": inside: joins GPUs"),
        (("leaf:", "gpus: [0]\ninside: {rate: 0gbit}\nleaf:"), ": inside: 0gbit"),
        (("leaf:", "gpus: [0]\ninside: {rate: fast}\nleaf:"), ": inside: 'fast'"),
        (("leaf:", "ack_timeout: cx6-floor-off\nleaf:"), ": ack_timeout: "),
        (("nics: 1, attach: block}", "nics: 1, attach: bond}\nnics: connectx-6"), ": nics: "),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(change, words):
    """The error is one line that names the file and the key, or the line of malformed YAML."""
    with pytest.raises(UsageError) as refused:
        parse(GOOD.replace(*change), "mine.yml")
    assert "mine.yml" in str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_nics_have_the_dscp_of_the_file():
    """The lab's NICs send with the file's DSCP, or with 0."""
    for dscp, text in ((26, GOOD.replace("leaf:", "dscp: 26\nleaf:", 1)), (0, GOOD)):
        assert {nic.dscp for host in parse(text, "mine.yml").hosts for nic in host.nics} == {dscp}


def test_an_unknown_name_lists_the_known_ones():
    """A mistyped topology is answered with what there is."""
    with pytest.raises(UsageError, match=r"unknown topology 'clos-9x9'.*clos-2x4"):
        load("clos-9x9")


def test_a_missing_file_is_no_unknown_name(tmp_path):
    """A path that leads nowhere is said to be no file."""
    path = tmp_path / "mine.yml"
    with pytest.raises(UsageError, match=rf"^{path}: no such file; give one of .*clos-2x4"):
        load(str(path))


@given(leaves=st.integers(1, 8), per_leaf=st.integers(1, 2), nics=st.integers(1, 4), spines=st.integers(1, 16))
def test_addresses_are_unique_in_any_block_fabric(leaves, per_leaf, nics, spines):
    """No two ends of any link share an address or an interface, and every NIC sits in its leaf's range."""
    topology = made(
        LeafSpine(
            name="t",
            description="",
            leaf=Tier(leaves),
            spine=Tier(spines),
            hosts=HostGroup(2 * leaves * per_leaf, nics, Attach.BLOCK),
            rates=Rates("1gbit", "1gbit"),
        )
    )
    ends = [end for link in topology.links for end in link.ends]
    addresses = [p.nic.address for p in topology.ports] + [p.gateway for p in topology.ports]
    addresses += [end.address for end in ends]
    assert len(set(addresses)) == len(addresses)
    assert len({(end.switch, end.interface) for end in ends}) == len(ends)
    assert all(port.nic.address.startswith(f"10.{port.edge}.") for port in topology.ports)


def test_rails_and_planes_are_cabled_as_named():
    """On rails NIC r is on leaf r; with planes a host's two NICs are on two leaves of its block."""
    assert all(port.edge == port.nic.index for port in load("rails-8").ports)
    by_host = {}
    for port in load("dual-plane").ports:
        by_host.setdefault(port.nic.host, []).append(port.edge)
    assert by_host["h0"] == [0, 1]
    assert by_host["h7"] == [2, 3]


def test_a_bond_has_its_ports_on_both_leaves_of_a_pair():
    """Each NIC has one address, of which both leaves are the gateway, and each leaf an address of its own beside it."""
    topology = load("bonds-2")
    assert topology.subnets == {4: ("leaf0", "leaf1"), 5: ("leaf2", "leaf3")}
    for host in topology.hosts:
        (nic,) = host.nics
        ports = topology.cables(nic)
        assert nic.rate_bps == sum(port.rate_bps for port in ports) == 1e10
        assert nic.bond == tuple(port.netdev for port in ports)
        assert tuple(port.switch for port in ports) == topology.subnets[ports[0].edge]
        assert len({port.gateway for port in ports}) == 1
        assert len({port.switch_addresses[0] for port in ports} | {nic.address, ports[0].gateway}) == 4
    interfaces = [(port.switch, port.interface) for port in topology.ports]
    assert len(set(interfaces)) == len(interfaces) == 16


@pytest.mark.parametrize("change", [("leaf: {count: 4}", "leaf: {count: 3}"), ("hosts: {count: 8", "hosts: {count: 7")])
def test_bonds_need_pairs_of_leaves(change):
    """Hosts that do not divide among pairs of leaves are refused, with the key."""
    with pytest.raises(UsageError, match=r"hosts.count: attach `bond`: \d hosts do not divide among pairs"):
        parse(DIRECTORY.joinpath("bonds-2.yml").read_text().replace(*change), "mine.yml")


def test_nics_send_packets_that_may_be_marked_where_switches_mark():
    """With `ecn` every NIC's traffic class has ECT(0) below the DSCP; without it, ECN bits of 0."""
    for text, classes in ((GOOD.replace("leaf:", "ecn: {}\ndscp: 26\nleaf:", 1), {26 << 2 | 2}), (GOOD, {0})):
        assert {nic.traffic_class for host in parse(text, "mine.yml").hosts for nic in host.nics} == classes
