"""Topology files as graphs: shapes, routes, and how a wrong graph is refused."""

import itertools
import re
from pathlib import Path

import pytest
import yaml

from c4bench.errors import UsageError
from c4bench.inventory import load as load_inventory
from c4bench.lab.guest import provision
from c4bench.lab.spec import LabSpec
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import load, names, parse

REPOSITORY = Path(__file__).parents[3]
GRAPH = """\
name: g
description: two leaves, two spines, a double link and a missing one
switches: [leaf0, leaf1, spine0, spine1]
hosts: [a, b]
links:
  - {between: [a, leaf0], rate: 10gbit}
  - {between: [leaf1, b], rate: 25gbit, plane: 1}
  - {between: [leaf0, spine0], rate: 10gbit, count: 2}
  - {between: [leaf0, spine1], rate: 5gbit}
  - {between: [leaf1, spine0], rate: 10gbit, delay: 2ms}
"""


def walk(topology, source, destination):
    """Every path of switches from one host's first NIC to another's, by the routes of each switch."""
    routes = next_hops(topology)
    start, end = (next(port for port in topology.ports if port.nic.host == host) for host in (source, destination))
    paths, growing = [], [((start.switch,), ())]
    while growing:
        switches, links = growing.pop()
        if switches[-1] == end.switch:
            paths.append((switches, links))
            continue
        assert len(switches) <= 8, "a loop"
        for link, near in routes[switches[-1]][end.edge]:
            growing.append(((*switches, link.far_end(near.switch).switch), (*links, link.number)))
    return sorted(paths)


def test_a_graph_is_what_its_links_say():
    """Rates, delays, planes and the number of parallel links are those of the file."""
    topology = parse(GRAPH, "mine.yml")
    assert [(link.lower.switch, link.upper.switch, link.rate_bps, link.delay_s) for link in topology.links] == [
        ("leaf0", "spine0", 1e10, 0.0),
        ("leaf0", "spine0", 1e10, 0.0),
        ("leaf0", "spine1", 5e9, 0.0),
        ("leaf1", "spine0", 1e10, 0.002),
    ]
    assert [(host.name, [(nic.rate_bps, nic.plane) for nic in host.nics]) for host in topology.hosts] == [
        ("a", [(1e10, 0)]),
        ("b", [(2.5e10, 1)]),
    ]
    # Parallel links are two paths, and the spine with no link to the other leaf is on none.
    assert walk(topology, "a", "b") == [(("leaf0", "spine0", "leaf1"), (0, 3)), (("leaf0", "spine0", "leaf1"), (1, 3))]


@pytest.mark.parametrize(
    ("name", "near", "far", "length"),
    [("fat-tree-2x2", ("h0", "h2", 2), ("h0", "h4", 4), 5), ("sites-2", ("h0", "h2", 2), ("h0", "h4", 4), 6)],
)
def test_paths_of_the_shapes(name, near, far, length):
    """Within a pod or a site paths turn at its spines; between two, every path is as short as any and none loops."""
    topology = load(name)
    for (source, destination, count), switches in ((near, 3), (far, length)):
        found = [path for path, _ in walk(topology, source, destination)]
        assert len(found) == count
        assert {len(path) for path in found} == {switches}


def test_every_host_reaches_every_other_in_every_topology():
    """Routes lead from each edge switch to each other, and never through an edge switch in between."""
    for name in ("clos-2x4", "rails-4", "planes-2", "fat-tree-2x2", "unequal-2x4", "sites-2"):
        topology = load(name)
        routes = next_hops(topology)
        edges = {switch.name for switch in topology.edges}
        for source, target in itertools.permutations(topology.edges, 2):
            here = {source.name}
            while target.name not in here:
                here = {link.far_end(near.switch).switch for one in here for link, near in routes[one][target.edge]}
                assert here
                assert here == {target.name} or not here & edges


def test_the_documents_sample_is_a_topology():
    """The graph that docs/topologies.md shows can be loaded, and has the links that its text says."""
    text = (REPOSITORY / "docs/topologies.md").read_text().split("```yaml\n")[1].split("```")[0]
    topology = parse(text, "docs/topologies.md")
    assert len(topology.links) == 7
    assert len(walk(topology, "h0", "h2")) == 5  # 2 x 2 over one spine, 1 over the other


def many_hosts(count):
    names = [f"h{number}" for number in range(count)]
    links = [f"  - {{between: [{name}, leaf0], rate: 10gbit}}\n" for name in names]
    return f"name: g\ndescription: ''\nswitches: [leaf0]\nhosts: [{', '.join(names)}]\nlinks:\n{''.join(links)}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("leaf0, spine1]", "leaf0, spine9]"), "leaf0 to spine9: no switch and no host is called 'spine9'"),
        (("[leaf0, spine1]", "[leaf0, leaf0]"), "leaf0 to leaf0: a link to itself"),
        (("  - {between: [leaf1, b], rate: 25gbit, plane: 1}\n", ""), "b cannot be reached from a"),
        (("[leaf1, spine0]", "[spine1, spine0]"), "b cannot be reached from a"),
        (("rate: 5gbit", "rate: 0gbit"), "leaf0 to spine1: rates: a link carries 100mbit to 100gbit"),
        (("rate: 5gbit", "rate: fast"), "links[3].rate: 'fast' is not a quantity"),
        (("delay: 2ms", "delay: 2"), "links[4].delay"),
        (("delay: 2ms", "delay: 2 days"), "links[4].delay: '2 days' is not a quantity"),
        (("delay: 2ms", "delay: 90s"), "delay: 90 s; give 0 to 1"),
        (("count: 2", "count: 0"), "links[2].count: 0 cables"),
        (("[a, b]", "[a, leaf1]"), "leaf1 is named 2 times"),
        (("[a, b]", "[a, B]"), "'B' is not a name"),
        (("[a, leaf0]", "[a, b]"), "a to b: a link between two hosts"),
        (("switches: [leaf0", "switches: [leaf9, leaf0"), "no host can be reached from leaf9"),
        (("hosts: [a, b]", "hosts: &x [a, *x]"), "mine.yml"),
        (("links:", "colour: red\nlinks:"), "colour"),
        (("rate: 10gbit, count: 2", "rate: 10gbit, bond: b0"), "links[2].bond: a link between switches"),
        (
            ("[a, leaf0], rate: 10gbit", "[a, leaf0], rate: 10gbit, bond: b0"),
            "bond b0 of a: a single port; give it a further",
        ),
        (
            ("[a, leaf0], rate: 10gbit", "[a, leaf0], rate: 10gbit, count: 2, bond: b0"),
            "bond b0 of a: two ports on one switch; connect each to a switch of its own",
        ),
        (
            (
                "  - {between: [a, leaf0], rate: 10gbit}",
                "  - {between: [a, leaf0], rate: 10gbit, bond: b0}\n  - {between: [a, leaf1], rate: 1gbit, bond: b0}",
            ),
            "bond b0 of a: ports of different rate",
        ),
    ],
)
def test_a_wrong_graph_is_refused_in_one_line(change, words):
    """The error names the file and the line, the link or key, and the reason."""
    with pytest.raises(UsageError) as refused:
        parse(GRAPH.replace(*change), "mine.yml")
    assert re.match(r"mine\.yml(:\d+|: line \d+)?: ", str(refused.value))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_lab_has_up_to_64_hosts():
    """64 hosts are a fabric, and one more is refused with the number."""
    assert len(parse(many_hosts(64), "mine.yml").hosts) == 64
    with pytest.raises(UsageError, match=r"hosts: 65 hosts; a lab has 2 to 64"):
        parse(many_hosts(65), "mine.yml")


@pytest.mark.parametrize("name", names())
def test_the_labs_inventory_states_its_graph(tmp_path, name):
    """The inventory of every topology is one that is accepted, with the cables and ports of the topology."""
    topology = load(name)
    path = tmp_path / "hosts.yml"
    spec = LabSpec(topology, (), "python3", (), "/", {}, "trust", agents=True, seed=1)
    path.write_text(yaml.safe_dump(provision.inventory(spec)))
    graph = load_inventory(path).graph
    cables = {(f"{port.host}/{port.nic}", port.switch, port.port, port.rate_bps) for port in graph.host_ports}
    assert cables == {(port.nic.name, port.switch, port.interface, port.rate_bps) for port in topology.ports}
    assert [(trunk.a, trunk.a_port, trunk.b, trunk.b_port, trunk.rate_bps) for trunk in graph.trunks] == [
        (link.lower.switch, link.lower.interface, link.upper.switch, link.upper.interface, link.rate_bps)
        for link in topology.links
    ]


BONDED = """\
name: g
description: a bond beside a NIC with one cable on each of two leaves
switches: [leaf0, leaf1, spine0]
hosts: [a, b]
links:
  - {between: [a, leaf0], rate: 10gbit}
  - {between: [a, leaf0], rate: 5gbit, bond: b0}
  - {between: [a, leaf1], rate: 5gbit, bond: b0}
  - {between: [b, leaf1], rate: 10gbit}
  - {between: [leaf0, spine0], rate: 10gbit}
  - {between: [leaf1, spine0], rate: 10gbit}
"""


def test_a_graph_may_have_bonds_beside_other_nics():
    """Links of one bond are one NIC with a subnet of both leaves; packets to it end at whichever leaf they reach."""
    topology = parse(BONDED, "mine.yml")
    assert [(nic.name, nic.rate_bps, nic.address, nic.bond) for host in topology.hosts for nic in host.nics] == [
        ("a/0", 1e10, "10.0.0.1", ()),
        ("a/1", 1e10, "10.2.0.1", ("an1a", "an1b")),
        ("b/0", 1e10, "10.1.0.1", ()),
    ]
    assert topology.subnets == {0: ("leaf0",), 1: ("leaf1",), 2: ("leaf0", "leaf1")}
    routes = next_hops(topology)
    assert {number: len(hops) for number, hops in routes["spine0"].items()} == {0: 1, 1: 1, 2: 2}
    assert set(routes["leaf0"]) == {1}
    assert [port.interface for port in topology.ports if port.switch == "leaf1"] == ["p0", "p1"]
