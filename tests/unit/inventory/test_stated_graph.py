"""The fabric's graph in an inventory: what it may say, and how a wrong one is refused."""

import json

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from c4bench.cli.main import main
from c4bench.errors import UsageError
from c4bench.inventory import load
from c4bench.lab.topology_file import parse
from c4bench.model.graph import HostPort, Trunk

INVENTORY = """\
all:
  vars:
    c4_fabric:
      switches: [spine0, spine1]
      links:
        - {between: [a, leaf0], rate: 100gbit}
        - {between: [leaf1/Ethernet4, b/1], rate: 200gbit}
        - {between: [leaf1, b], rate: 100gbit}
        - {between: [leaf0, spine0], rate: 400gbit, count: 2}
        - {between: [leaf0/Ethernet48, spine1/Ethernet0], rate: 100gbit}
        - {between: [leaf1, spine0], rate: 400gbit, delay: 2ms}
  hosts:
    a: {c4: {nics: [{netdev: eth1, rate: 100gbit, leaf: leaf0/Ethernet8}]}}
    b: {c4: {nics: [{netdev: eth1, rate: 100gbit}, {netdev: eth2, rate: 200gbit}]}}
    c: {c4: {nics: [{netdev: eth1, leaf: leaf1}]}}
    control:
  children: {switches: {hosts: {leaf0: , leaf1: , console: }}}
"""


@pytest.fixture
def graph(tmp_path):
    """`graph(text)`: the graph of an inventory."""

    def read(text):
        path = tmp_path / "hosts.yml"
        path.write_text(text)
        return load(path).graph

    return read


def test_an_inventory_states_the_cables(graph):
    """Links, parallel links, ports and NICs are as stated, and a NIC that has no link there is on its stated leaf."""
    stated = graph(INVENTORY)
    assert stated.switches == ("spine0", "spine1", "leaf0", "leaf1")
    assert stated.hosts == ("a", "b", "c")
    assert stated.host_ports == (
        HostPort("a", "leaf0", 1e11, nic=0, port="Ethernet8", position=0),
        HostPort("b", "leaf1", 2e11, nic=1, port="Ethernet4", position=1),
        HostPort("b", "leaf1", 1e11, nic=0, position=2),
        HostPort("c", "leaf1", 0.0, nic=0),
    )
    assert stated.trunks == (
        Trunk("leaf0", "spine0", 4e11, position=3),
        Trunk("leaf0", "spine0", 4e11, position=3),
        Trunk("leaf0", "spine1", 1e11, 0.0, "Ethernet48", "Ethernet0", 4),
        Trunk("leaf1", "spine0", 4e11, 0.002, position=5),
    )


BONDED = """\
all:
  vars:
    c4_fabric:
      links:
        - {between: [a/2, leaf0], rate: 100gbit, bond: b0}
        - {between: [a, leaf1], rate: 100gbit, bond: b0}
        - {between: [b/0, leaf0], rate: 100gbit, bond: b0}
        - {between: [b, leaf0], rate: 400gbit}
        - {between: [b, leaf1], rate: 100gbit, bond: b0}
  hosts:
    a: {c4: {nics: [{index: 2, netdev: bond0, rate: 200gbit, bond: [eth1, eth2]}]}}
    b: {c4: {nics: [{netdev: bond0, bond: [eth1, eth2]}, {netdev: eth3, rate: 400gbit}]}}
  children: {switches: {hosts: {leaf0: , leaf1: }}}
"""


def test_links_of_a_bond_are_one_nic(graph):
    """A host's links with one `bond` have the same NIC, stated or not; the next link has the next NIC."""
    ports = [(port.host, port.nic, port.switch, port.bond) for port in graph(BONDED).host_ports]
    assert ports == [
        ("a", 2, "leaf0", "b0"),
        ("a", 2, "leaf1", "b0"),
        ("b", 0, "leaf0", "b0"),
        ("b", 1, "leaf0", ""),
        ("b", 0, "leaf1", "b0"),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("[b, leaf0], rate: 400gbit}\n        - {between: [b, leaf1]", "[b/1, leaf1]"),
            "links[2]: bond b0 of b: ports of different NICs",
        ),
        (("[a, leaf1]", "[a, leaf0]"), "links[0]: bond b0 of a: two ports on one switch"),
        (("[a, leaf1], rate: 100gbit", "[a, leaf1], rate: 50gbit"), "bond b0 of a: ports of different rate"),
        (("400gbit}\n", "400gbit, bond: b1}\n"), "links[3]: bond b1 of b: a single port; give it a further link"),
        (
            ("[a/2, leaf0], rate: 100gbit, bond: b0", "[a/2, leaf0], rate: 100gbit"),
            "links[1]: a has 1 NICs in c4.nics and more links here",
        ),
        (("[b, leaf0], rate: 400gbit", "[leaf0, leaf1], bond: b0, rate: 400gbit"), "links[3].bond: a link between"),
        ((", bond: [eth1, eth2]}]}}\n    b", "}]}}\n    b"), ":11: all.hosts.a.c4.nics[0]: a/2 has 1 ports here and 2"),
        (("rate: 200gbit", "rate: 100gbit"), "a/2 has 100 Gbit/s here and 200 Gbit/s in c4_fabric"),
        (("netdev: bond0, bond", "leaf: leaf0, bond"), "c4.nics[0].leaf: leaf0: a bond is cabled to several switches"),
    ],
)
def test_a_wrong_bond_is_refused_in_one_line(graph, change, words):
    """Ports of a bond go to different switches, are alike, and are as many as the NIC's interfaces."""
    assert change[0] in BONDED
    with pytest.raises(UsageError) as refused:
        graph(BONDED.replace(change[0], change[1], 1))
    assert "hosts.yml" in str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_leaves_of_nics_are_a_graph_too(graph):
    """Without `c4_fabric` the graph has the NICs' cables and none between switches; without leaves there is none."""
    alone = graph("all: {hosts: {a: {c4: {nics: [{leaf: leaf3/p1}]}}, b: {c4: {nics: [{netdev: x}]}}}}")
    assert (alone.switches, alone.hosts, alone.trunks) == (("leaf3",), ("a",), ())
    assert alone.host_ports == (HostPort("a", "leaf3", 0.0, nic=0, port="p1"),)
    assert graph("all: {hosts: {a: {c4: {nics: [{netdev: x}]}}}}") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("spine0, spine1]", "spine0, spine1, a]"), ":4: all.vars.c4_fabric.switches: a is named 2 times"),
        (("[leaf1, spine0]", "[leaf1, spine7]"), ":11: all.vars.c4_fabric.links[5]: leaf1 to spine7: no switch"),
        (("[leaf1, spine0]", "[leaf1, leaf1]"), ":11: all.vars.c4_fabric.links[5]: leaf1 to leaf1: a link to itself"),
        (
            ("        - {between: [leaf1, spine0], rate: 400gbit, delay: 2ms}\n", ""),
            "links: b cannot be reached from a",
        ),
        (("leaf: leaf1}", "netdev: eth1}"), "is given twice"),
        ((", leaf: leaf1}", "}"), "links: c cannot be reached from a"),
        (("leaf: leaf1}", "leaf: leaf9}"), "links: c to leaf9: no switch and no host is called 'leaf9'"),
        (("rate: 400gbit, delay", "rate: 0gbit, delay"), "links[5]: leaf1 to spine0: rates: a link carries 1mbit to"),
        (("rate: 400gbit, delay", "rate: 9999gbit, delay"), "rates: a link carries 1mbit to 3200gbit"),
        (("rate: 400gbit, delay", "rate: fast, delay"), ":11: all.vars.c4_fabric.links[5].rate: 'fast' is not"),
        (("delay: 2ms", "delay: 20s"), "delay: 20 s; give 0 to 10"),
        (("count: 2", "count: 65"), ":9: all.vars.c4_fabric.links[3].count: 65 cables; give 1 to 64"),
        (("Ethernet0], rate", "Ethernet0], count: 2, rate"), "links[4].count: 2 cables at one port"),
        (("[leaf1, b]", "[leaf1/Ethernet4, b]"), "links[2]: leaf1/Ethernet4 has two cables"),
        (("[leaf1, b]", "[leaf1, b/1]"), "links[2]: b/1 has two cables"),
        (("[leaf1, b]", "[leaf1, b/5]"), ":8: all.vars.c4_fabric.links[2]: b has no NIC 5"),
        (("[a, leaf0]", "[a/eth1, leaf0]"), ":6: all.vars.c4_fabric.links[0].between: 'a/eth1' is no NIC"),
        (("[leaf1, b], rate: 100gbit", "[leaf1, b], rate: 100gbit, count: 2"), "b has 2 NICs in c4.nics and more"),
        (("[a, leaf0]", "[a, b]"), "a to b: a link between two hosts"),
        (("delay: 2ms", "colour: red"), ":11: all.vars.c4_fabric.links[5].colour: unknown key; there are between"),
        (("switches: [spine0", "switch: [spine0"), "unknown key; there are links, switches"),
        (("leaf: leaf0/Ethernet8", "leaf: leaf1/Ethernet8"), ":13: all.hosts.a.c4.nics[0]: a/0 is at leaf1/Ethernet8"),
        (("[a, leaf0], rate: 100gbit", "[a, leaf0], rate: 50gbit"), "a/0 has 100 Gbit/s here and 50 Gbit/s in"),
        (("control:\n", "control: {c4_fabric: {links: []}}\n"), "differs from that of another host"),
    ],
)
def test_a_wrong_graph_is_refused_in_one_line(graph, change, words):
    """The error names the file, the line, the key and the reason."""
    assert change[0] in INVENTORY
    with pytest.raises(UsageError) as refused:
        graph(INVENTORY.replace(change[0], change[1], 1))
    assert "hosts.yml" in str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


_SWITCHES = ("s0", "s1", "s2")
_CABLES = st.lists(
    st.fixed_dictionaries(
        {"between": st.permutations(("h0", *_SWITCHES)).map(lambda names: names[:2]), "rate": st.just("10gbit")},
        optional={
            "count": st.integers(-1, 3),
            "delay": st.sampled_from(["0s", "2ms", "3s"]),
            "bond": st.just("b0"),
        },
    ),
    max_size=6,
)


@given(_CABLES)
def test_inventories_and_topology_files_read_the_same_graph(tmp_path_factory, cables):
    """What a lab accepts are the same cables in an inventory, and both refuse the same, except for a lab's limits."""
    links = [{"between": ["h0", "s0"], "rate": "10gbit"}, {"between": ["h1", "s1"], "rate": "10gbit"}, *cables]
    shape = {"switches": list(_SWITCHES), "links": links}
    path = tmp_path_factory.mktemp("graph") / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"vars": {"c4_fabric": shape}, "hosts": {"h0": None, "h1": None}}}))
    topology = {"name": "g", "description": "", "hosts": ["h0", "h1"], **shape}
    try:
        lab = parse(yaml.safe_dump(topology), "t.yml")
    except UsageError as error:
        problem = str(error).removeprefix("t.yml: ")
        if "delay: 3 s" in problem or "NICs; give it" in problem or "ports; give it" in problem:  # limits of a lab only
            return
        with pytest.raises(UsageError) as refused:
            load(path)
        assert str(refused.value).endswith(problem.split(": ", 1)[1])
        return
    stated = load(path).graph
    assert [(port.nic.name, port.switch) for port in lab.ports] == [
        (f"{port.host}/{port.nic}", port.switch) for port in sorted(stated.host_ports, key=lambda port: port.host)
    ]
    assert [({link.lower.switch, link.upper.switch}, link.rate_bps, link.delay_s) for link in lab.links] == [
        ({trunk.a, trunk.b}, trunk.rate_bps, trunk.delay_s) for trunk in stated.trunks
    ]


def test_thousands_of_hosts_are_read(tmp_path):
    """A fabric of 4096 hosts is checked in seconds, and one host too many for the limit is refused."""
    hosts = [f"h{number}" for number in range(4096)]
    links = [{"between": [host, f"leaf{number // 32}"], "rate": "100gbit"} for number, host in enumerate(hosts)]
    links += [{"between": [f"leaf{n}", f"spine{s}"], "rate": "400gbit"} for n in range(128) for s in range(16)]
    switches = [*(f"leaf{n}" for n in range(128)), *(f"spine{s}" for s in range(16))]
    path = tmp_path / "hosts.json"
    document = {"vars": {"c4_fabric": {"switches": switches, "links": links}}, "hosts": dict.fromkeys(hosts)}
    path.write_bytes(msgspec.json.encode({"all": document}))
    assert len(load(path).graph.host_ports) == 4096


def test_the_check_counts_the_stated_cables(tmp_path, capsys):
    """`c4bench inventory check` says how many cables it has read, those of NICs included, also in JSON."""
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    assert main(["inventory", "check", str(path)]) == 0
    assert "4 hosts, 4 NICs, 3 switches, 8 cables; no faults are permitted" in capsys.readouterr().out
    main(["inventory", "check", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["cables"] == 8
