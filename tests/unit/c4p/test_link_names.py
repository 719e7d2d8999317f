"""Links are called by nodes and ports, as far as anybody states them."""

from c4bench.c4p.knowledge.link_names import name_links
from c4bench.model.graph import FabricGraph, HostPort, Trunk
from tools.bench.fabrics import clos

RATE = 10e9
PAIRS = [(f"h{a}/0", f"h{b}/0") for a in range(4) for b in range(4) if a != b]
ATLAS = clos(4, 2, 2).atlas(PAIRS)
SWITCHES = {"up": "spine{1}", "down": "leaf{1}", "in": "leaf{1}"}


def graph(ports):
    """The fabric as an inventory states it, with the switches' ports or without."""
    trunks = [
        Trunk(f"leaf{leaf}", f"spine{spine}", RATE, a_port=f"up{spine}" * ports, b_port=f"down{leaf}" * ports)
        for leaf in range(2)
        for spine in range(2)
    ]
    hosts = [HostPort(f"h{n}", f"leaf{n // 2}", RATE, nic=0, port=f"p{n}" * ports) for n in range(4)]
    return FabricGraph(
        ("leaf0", "leaf1", "spine0", "spine1"), tuple(f"h{n}" for n in range(4)), tuple(hosts), tuple(trunks)
    )


def asked(interfaces):
    """What the switches say of the ports at which links enter them."""
    found = {}
    for hop in ATLAS.hops:
        kind, _, ends = hop.partition(":")
        if kind in SWITCHES:
            near, _, far = ends.partition(">")
            found[hop] = SWITCHES[kind].format(near, far), interfaces.get(kind, "{}").format(near)
    return found


def test_without_anything_stated_a_link_is_called_by_addresses():
    """Switches that nobody has named are called by an address; NICs have their names."""
    named = name_links(ATLAS)
    assert set(named.names) == set(ATLAS.hops)
    assert named.names["in:h0/0>0"].startswith("h0/0 > ")
    assert (named.tiers["h0/0"], max(named.tiers.values())) == (0, 2)


def test_a_port_that_a_switch_tells_is_the_far_end():
    """A switch knows the port at which a link enters it: that of the other direction is the port at the near end."""
    named = name_links(ATLAS, None, asked({"up": "down{}", "down": "up{}", "in": "e1"}))
    assert named.names["up:0>1"] == "leaf0/up1 > spine1/down0"
    assert named.names["down:1>0"] == "spine1/down0 > leaf0/up1"
    assert named.names["out:h0/0"] == "leaf0/e1 > h0/0"


def test_the_graph_tells_the_port_at_the_near_end():
    """Where the graph states both ports of a cable, both are in the name, in each direction."""
    named = name_links(ATLAS, graph(ports=True), asked({"up": "down{}", "down": "up{}", "in": "p?"}))
    assert named.names["up:0>1"] == "leaf0/up1 > spine1/down0"
    assert named.names["down:1>0"] == "spine1/down0 > leaf0/up1"
    assert named.names["out:h3/0"] == "leaf1/p3 > h3/0"


def test_ports_of_which_several_may_be_meant_are_left_out():
    """Two cables between the same switches, of which nobody says which is which, have no ports in their names."""
    given = graph(ports=True)
    twice = FabricGraph(given.switches, given.hosts, given.host_ports, (*given.trunks, *given.trunks))
    named = name_links(ATLAS, twice, {hop: (switch, "") for hop, (switch, _) in asked({}).items()})
    assert named.names["up:0>1"] == "leaf0 > spine1"


def test_a_missing_link_keeps_its_name():
    """Once no path shows a link that is missing, it has the name that it had; others that are gone have none."""
    before = name_links(ATLAS, graph(ports=True), asked({"up": "down{}", "down": "up{}"}))
    now = name_links(clos(4, 2, 1).atlas(PAIRS), graph(ports=True), asked({"up": "down{}", "down": "up{}"}))
    both = now.beside(before, {"up:0>1", "nowhere"})
    assert both.names["up:0>1"] == "leaf0/up1 > spine1/down0"
    assert both.links["up:0>1"].target == "spine1"
    assert both.tiers["spine1"] == 2
    assert "up:1>1" not in both.names
