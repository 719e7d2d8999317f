"""The stated graph against what paths show, on the topologies of the lab."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.c4p.knowledge.cabling import Kind, compare_paths, recognise
from c4bench.c4p.knowledge.link_names import link_rates
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import load, parse
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from tools.bench.fabrics import clos

PARALLEL = """\
name: g
description: double links, and one thinner
switches: [leaf0, leaf1, leaf2, spine0, spine1]
hosts: [h0, h1, h2]
links:
  - {between: [h0, leaf0], rate: 10gbit, count: 2}
  - {between: [h1, leaf1], rate: 10gbit}
  - {between: [h2, leaf2], rate: 10gbit}
  - {between: [leaf0, spine0], rate: 10gbit, count: 2}
  - {between: [leaf1, spine0], rate: 10gbit, count: 3}
  - {between: [leaf2, spine0], rate: 10gbit}
  - {between: [leaf0, spine1], rate: 5gbit}
  - {between: [leaf1, spine1], rate: 5gbit}
  - {between: [leaf2, spine1], rate: 5gbit, count: 2}
"""
BIG_TREE = """\
name: tree
description: four pods with four spines each
fat_tree: {pods: 4, leaves: 2, spines: 4, cores: 2}
hosts: {count: 8, nics: 1, attach: block}
rates: {nic: 10gbit, uplink: 10gbit}
"""
SHAPES = ("clos-2x4", "rails-4", "planes-2", "fat-tree-2x2", "unequal-2x4", "sites-2", "bonds-2")
TOPOLOGIES = {name: load(name) for name in SHAPES} | {
    "parallel": parse(PARALLEL, "g.yml"),
    "big tree": parse(BIG_TREE, "g.yml"),
}


def graph_of(topology):
    """What an inventory says of a topology."""
    ports = tuple(
        HostPort(
            port.nic.host,
            port.switch,
            port.rate_bps,
            nic=port.nic.index,
            port=port.interface,
            bond=port.nic.netdev if port.nic.bond else "",
        )
        for port in topology.ports
    )
    trunks = tuple(
        Trunk(a.switch, b.switch, link.rate_bps, 0.0, a.interface, b.interface)
        for link in topology.links
        for a, b in [link.ends]
    )
    return FabricGraph(
        tuple(switch.name for switch in topology.switches), tuple(h.name for h in topology.hosts), ports, trunks
    )


def atlas_of(topology, hosts=()):
    """What probing finds between these hosts, or all: every path by the routes of the switches."""
    nics = [nic for host in topology.hosts for nic in host.nics if not hosts or host.name in hosts]
    traces = []
    for source, target in itertools.permutations(nics, 2):
        if source.host != target.host:
            paths = enumerate(paths_of(topology, source, target))
            traces += [PathTrace(source.name, target.name, port, hops) for port, hops in paths]
    return Atlas.from_answers(traces)


def paths_of(topology, source, target):
    """Every path between two NICs, as hops."""
    routes, found = next_hops(topology), []
    ends = {port.switch: port for port in topology.cables(target)}
    growing = [(port.switch, (port.switch_addresses[0],)) for port in topology.cables(source)]
    while growing:
        here, hops = growing.pop()
        if here in ends:
            found.append((*hops, last_hop(ends[here])))
            continue
        for link, end in routes[here].get(topology.cables(target)[0].edge, ()):
            far = link.far_end(end.switch)
            growing.append((far.switch, (*hops, far.address)))
    return found


def last_hop(port):
    """The link to a NIC by this cable."""
    return f"{port.nic.address}@{port.switch}" if port.nic.bond else port.nic.address


def names_of(topology):
    """The switch at each address, as the switches themselves say."""
    found = {end.address: end.switch for link in topology.links for end in link.ends}
    return found | {port.switch_addresses[0]: port.switch for port in topology.ports}


ATLASES = {name: atlas_of(topology) for name, topology in TOPOLOGIES.items()}


@pytest.mark.parametrize("asked", [True, False], ids=["switches are asked", "no switch is asked"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_fabric_that_is_as_stated_has_no_difference(name, asked):
    """The paths of every shape agree with its own graph, whether or not the switches can be asked for their names."""
    names = names_of(TOPOLOGIES[name]) if asked else {}
    assert compare_paths(ATLASES[name], graph_of(TOPOLOGIES[name]), names) == ()


@pytest.mark.parametrize("name", ["clos-2x4", "fat-tree-2x2", "parallel"])
def test_paths_of_few_hosts_are_compared_where_they_lead(name):
    """Links that no path between these hosts should cross are not missed."""
    topology = TOPOLOGIES[name]
    first, *_, last = (host.name for host in topology.hosts)
    assert compare_paths(atlas_of(topology, (first, last)), graph_of(topology), names_of(topology)) == ()


def edited(graph, number, edit):
    """The graph after one change of a stated link, and the two switches of that link."""
    trunk = graph.trunks[number % len(graph.trunks)]
    without = tuple(other for other in graph.trunks if other is not trunk)
    again = msgspec.structs.replace(trunk, a_port="", b_port="")
    trunks = without if edit == "left out" else (*graph.trunks, again)
    return msgspec.structs.replace(graph, trunks=trunks), {trunk.a, trunk.b}


@given(st.sampled_from(sorted(TOPOLOGIES)), st.integers(0, 1000), st.sampled_from(["left out", "doubled"]))
def test_one_link_that_is_stated_wrongly_is_the_only_one_named(name, number, edit):
    """With the switches' names known, exactly the changed link is reported, with both counts."""
    topology = TOPOLOGIES[name]
    graph, changed = edited(graph_of(topology), number, edit)
    (difference,) = compare_paths(ATLASES[name], graph, names_of(topology))
    true = sum({link.lower.switch, link.upper.switch} == changed for link in topology.links)
    assert {difference.a, difference.b} == changed
    assert (difference.found, difference.stated) == (true, true + (1 if edit == "doubled" else -1))
    assert difference.kind is (Kind.FEWER if edit == "doubled" else Kind.MORE if true > 1 else Kind.UNEXPECTED)


# In `sites-2` too little is known to tell a site's two spines and its border apart.
@given(st.sampled_from(sorted(TOPOLOGIES.keys() - {"sites-2"})), st.integers(0, 1000))
def test_a_wrong_link_is_one_difference_without_names_too(name, number):
    """Where no switch can be asked, a leaf's wrong link is one difference there, and others' are not seen."""
    graph, changed = edited(graph_of(TOPOLOGIES[name]), number, "doubled")
    leaves = {port.switch for port in graph.host_ports}
    if leaves.isdisjoint(changed):
        assert compare_paths(ATLASES[name], graph) == ()
        return
    (difference,) = compare_paths(ATLASES[name], graph)
    assert {difference.a, difference.b} & leaves == changed & leaves
    assert difference.kind is Kind.FEWER


def test_a_nic_on_another_leaf_than_stated():
    """Without the name of any switch, the NIC that is not with those it is stated with is named, by leaves alone."""
    built = clos(8, 4, 2)
    swapped = built._replace(leaf_of=built.leaf_of | {"h1/0": 1})
    pairs = [(a, b) for a in built.leaf_of for b in built.leaf_of if a != b]
    ports = tuple(HostPort(nic.split("/")[0], f"leaf{leaf}", 0.0, nic=0) for nic, leaf in built.leaf_of.items())
    graph = FabricGraph(tuple(f"leaf{n}" for n in range(4)), (), ports, ())
    assert compare_paths(built.atlas(pairs), graph) == ()
    (difference,) = compare_paths(swapped.atlas(pairs), graph)
    assert (difference.a, difference.b, difference.instead) == ("h1/0", "leaf0", "leaf1")
    assert str(difference) == ("h1/0 by paths: cabled to leaf1, stated is leaf0; check the cables and the inventory")
    # What nothing is stated of is nowhere wrong.
    assert compare_paths(swapped.atlas(pairs), FabricGraph((), (), (), ())) == ()


def test_a_link_to_another_switch_than_stated_is_one_line():
    """A cable that leads from a leaf to another spine than stated is one difference with both spines."""
    topology = TOPOLOGIES["unequal-2x4"]
    graph = graph_of(topology)
    moved = next(t for t in graph.trunks if (t.a, t.b) == ("leaf1", "spine2"))
    trunks = tuple(msgspec.structs.replace(t, b="spine9") if t is moved else t for t in graph.trunks)
    graph = msgspec.structs.replace(graph, trunks=trunks, switches=(*graph.switches, "spine9"))
    found = compare_paths(ATLASES["unequal-2x4"], graph, names_of(topology))
    assert [(one.kind, {one.a, one.b}, one.instead) for one in found if one.kind is not Kind.MISSING]
    assert {"leaf1", "spine2"} <= {name for one in found for name in (one.a, one.b, one.instead)}
    assert all("leaf1" in (one.a, one.b) or "spine9" in (one.a, one.b) for one in found)


def true_rates(topology):
    """The rate of each link by hop."""
    rates = {end.address: link.rate_bps for link in topology.links for end in link.ends}
    return rates | {at: port.rate_bps for port in topology.ports for at in (port.switch_addresses[0], last_hop(port))}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rates_are_those_of_the_graph(name):
    """Every link of every shape gets its own rate from the graph, and where a guess could be wrong, none."""
    topology = TOPOLOGIES[name]
    graph, nics, true = graph_of(topology), [port.nic for port in topology.ports], true_rates(topology)
    asked = link_rates(recognise(ATLASES[name], graph, names_of(topology)), graph, nics, {}, {})
    assert asked == {hop: true[hop] for hop in ATLASES[name].hops}
    guessed = link_rates(recognise(ATLASES[name], graph), graph, nics, {}, {})
    assert guessed.items() <= asked.items()
    uplinks = {rate_bps for hop, rate_bps in true.items() if hop.startswith("172.")}
    assert (len(guessed) == len(asked)) == (len(uplinks) == 1 or name == "sites-2")


def test_the_nearest_statement_of_a_rate_counts():
    """The switch's own port goes before the graph's port, this before the two ends, and these before the NIC."""
    topology = TOPOLOGIES["parallel"]
    graph = graph_of(topology)
    double = [link for link in topology.links if {end.switch for end in link.ends} == {"leaf0", "spine0"}]
    slow = msgspec.structs.replace(graph.trunks[0], rate_bps=1e9)
    graph = msgspec.structs.replace(graph, trunks=(slow, *graph.trunks[1:]))
    fabric = recognise(ATLASES["parallel"], graph, names_of(topology))
    nics = [port.nic for port in topology.ports]
    first, second = (link.upper.address for link in double)
    ports = {end.address: (end.switch, end.interface) for link in topology.links for end in link.ends}
    assert link_rates(fabric, graph, nics, {}, {})[second] == 1e9
    assert link_rates(fabric, graph, nics, {}, ports)[second] == 1e10
    assert link_rates(fabric, graph, nics, {}, ports)[first] == 1e9
    assert link_rates(fabric, graph, nics, {first: 4e10}, ports)[first] == 4e10
    bare = link_rates(fabric, FabricGraph((), (), (), ()), nics, {}, {})
    assert set(bare) == {address for port in topology.ports for address in (port.gateway, port.nic.address)}
