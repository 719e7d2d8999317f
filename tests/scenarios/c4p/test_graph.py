"""The atlas against the graph that the inventory states."""

import msgspec
import pytest

from c4bench.c4p.knowledge.cabling import Kind, compare_paths, recognise
from c4bench.c4p.knowledge.link_names import link_rates
from c4bench.model.measurement import Clock


@pytest.mark.needs(hosts=4)
def test_the_paths_agree_with_the_stated_graph(atlas, inventory, rdma_hosts, switches, measure):
    """Probing finds the stated links; of a graph with one link left out or doubled, exactly that link is reported."""
    graph = inventory.graph
    if graph is None or not graph.trunks or not switches.any:
        pytest.skip("no-graph: the inventory states no links between switches (c4_fabric), or no switches to ask")
    ports = switches.ports()
    names = {address: port.switch for address, port in ports.items()}
    measure("graph.differences", len(compare_paths(atlas, graph, names)), at_most=0, clock=Clock.NONE)
    reported = 0
    for trunk in graph.trunks:
        without = tuple(other for other in graph.trunks if other is not trunk)
        doubled = (*graph.trunks, msgspec.structs.replace(trunk, a_port="", b_port=""))
        for trunks, kinds in ((without, {Kind.UNEXPECTED, Kind.MORE}), (doubled, {Kind.FEWER})):
            found = compare_paths(atlas, msgspec.structs.replace(graph, trunks=trunks), names)
            right = len(found) == 1 and {found[0].a, found[0].b} == set(trunk.ends) and found[0].kind in kinds
            reported += right
    measure("graph.named_fraction", reported / (2 * len(graph.trunks)), equals=1, clock=Clock.NONE)

    true = {hop: ports[hop].rate_bps for hop in atlas.hops if hop in ports and ports[hop].rate_bps}
    nics = [nic for host in rdma_hosts for nic in host.nics]
    rates = link_rates(recognise(atlas, graph, names), graph, nics, {}, {})
    wrong = sum(rates[hop] != rate_bps for hop, rate_bps in true.items())
    measure("graph.wrong_rates", wrong, at_most=0, clock=Clock.NONE, links=len(true))
