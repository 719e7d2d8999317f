"""Plans on links of unequal rates, as the inventory states them."""

import pytest

from c4bench.c4p.controller import PathController
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import load
from c4bench.model.fabric import Flow

TOPOLOGY = load("unequal-2x4")
PORTS = range(49153, 49153 + 24)


def paths(source, target):
    """The hops of every path between two ports, by the routes of the switches."""
    routes = next_hops(TOPOLOGY)
    found, growing = [], [(source.switch, (source.gateway,))]
    while growing:
        here, hops = growing.pop()
        if here == target.switch:
            found.append((*hops, target.nic.address))
            continue
        for link, end in routes[here][target.edge]:
            far = link.far_end(end.switch)
            growing.append((far.switch, (*hops, far.address)))
    return found


def learnt(controller):
    """Have the controller know every pair's paths, each by several source ports."""
    traces = {}
    for source in TOPOLOGY.ports:
        for target in TOPOLOGY.ports:
            if source is not target:
                known = paths(source, target)
                traces |= {(source.nic.name, target.nic.name, port): known[port % len(known)] for port in PORTS}
    controller.learn(traces, 0.0)


def loads(controller, flows):
    """The load of every link, as a fraction of its rate."""
    rates = {end.address: link.rate_bps for link in TOPOLOGY.links for end in link.ends}
    found = {}
    for flow in flows:
        for hop in controller.path(flow.id).hops:
            found[hop] = found.get(hop, 0.0) + controller.weight(flow.id) * 1e10 / rates.get(hop, 1e10)
    return found


@pytest.mark.parametrize("when", ["before the paths", "after the flows"])
def test_connections_are_divided_by_the_rates_of_links(when):
    """40 Gbit/s over 9 + 9 + 9 + 5: four connections of four QPs load every uplink to 40/32 of its rate, not more."""
    rates = {end.address: link.rate_bps for link in TOPOLOGY.links for end in link.ends}
    controller = PathController()
    if when == "before the paths":
        controller.set_capacities(rates)
    learnt(controller)
    flows = [
        Flow(f"j{n}/j{n}:data/0>1/0.{qp}", f"j{n}", f"h{n}/0", f"h{n + 4}/0", 1e10 / 4)
        for n in range(4)
        for qp in range(4)
    ]
    controller.join(flows)
    if when == "after the flows":
        assert max(loads(controller, flows).values()) > 1.9
        controller.set_capacities(rates)
    assert max(loads(controller, flows).values()) == pytest.approx(40 / 32, rel=0.01)
