"""Plans between bonds, on the routes of the lab's topology: the load of both ports at either end."""

from collections import Counter

import pytest

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.controller import PathController
from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.knowledge.nic_links import BondPlanes, NicLinks
from c4bench.lab.topology import next_hops
from c4bench.lab.topology_file import load
from c4bench.model.fabric import Flow

TOPOLOGY = load("bonds-2")
NICS = {nic.name: nic for host in TOPOLOGY.hosts for nic in host.nics}
PORTS = range(49153, 49153 + 64)
QPS = 4


OWN = {port.switch_addresses[0]: port for port in TOPOLOGY.ports}
BETWEEN = {end.address: (end.switch, link.rate_bps) for link in TOPOLOGY.links for end in link.ends}

# Port 0 of every bond is left, port 1 right: the link by which its switch receives from it, and that back to it.
PLANES = {port.switch_addresses[0]: port.member for port in TOPOLOGY.ports} | {
    f"{port.nic.address}@{port.switch}": port.member for port in TOPOLOGY.ports
}


def nic_links():
    """The links to NICs, with the names of the switches."""
    links = NicLinks(NICS.values())
    links.name_switches({hop: port.switch for hop, port in OWN.items()} | {hop: end[0] for hop, end in BETWEEN.items()})
    return links


def capacities():
    """The rates of all links, bit/s by hop."""
    rates = {hop: port.rate_bps for hop, port in OWN.items()} | {hop: end[1] for hop, end in BETWEEN.items()}
    return rates | nic_links().capacities()


def controller_of_all_paths():
    """A controller that knows a source port for every path, and the rates of all links."""
    links = nic_links()
    controller = PathController()
    controller.set_capacities(capacities())
    controller.set_planes(PLANES)
    traces = {}
    for source in NICS.values():
        for target in NICS.values():
            if source is not target:
                known = [(*hops, links.last_hop(target.name, hops[-1])) for hops in switch_paths(source, target)]
                traces |= {(source.name, target.name, port): known[port % len(known)] for port in PORTS}
    controller.learn(traces, 0.0)
    return controller


def switch_paths(source, target):
    """The hops at switches of every path between two NICs, by the routes of the switches."""
    routes = next_hops(TOPOLOGY)
    ends = {port.switch: port.edge for port in TOPOLOGY.cables(target)}
    growing = [(port.switch, (port.switch_addresses[0],)) for port in TOPOLOGY.cables(source)]
    found = []
    while growing:
        here, hops = growing.pop()
        if here in ends:
            found.append(hops)
            continue
        for link, end in routes[here][next(iter(ends.values()))]:
            far = link.far_end(end.switch)
            growing.append((far.switch, (*hops, far.address)))
    return found


@pytest.mark.parametrize("pairs", [1, 4])
def test_both_ports_of_each_end_carry_half(pairs):
    """Jobs between bonds on two pairs of leaves load each port to send and each to receive to its rate, not more."""
    controller = controller_of_all_paths()
    flows = [flow for n in range(pairs) for flow in flows_of(f"j{n}", f"h{n}/0", f"h{n + 4}/0")]
    controller.join(flows)
    carried = carried_bps(controller, flows)
    assert len(carried) == 2 * 2 * 2 * pairs
    assert set(carried.values()) == {5e9}
    assert not crossing(controller, flows)


def test_two_jobs_on_each_bond_load_no_link_more_than_the_optimum():
    """Eight jobs on four pairs of bonds, two on each: connections that join one by one get the exact worst load."""
    controller = controller_of_all_paths()
    far = ["h4/0", "h5/0", "h6/0", "h7/0"]
    jobs = [flows_of(f"j{n}", f"h{n % 4}/0", far[(n + n // 4) % 4]) for n in range(8)]
    for flows in jobs:
        for connection in (flows[:QPS], flows[QPS:]):
            controller.join(connection)
    rates = capacities()
    every = [flow for flows in jobs for flow in flows]
    loads = Counter()
    for flow in every:
        for hop in controller.path(flow.id).hops:
            loads[hop] += controller.weight(flow.id) * NICS[flow.source].rate_bps / rates[hop]
    optimum = least_worst_load(every, controller.atlas, Conditions(rates), divisible=True)
    assert max(loads.values()) == pytest.approx(optimum, rel=0.003)
    assert not crossing(controller, every)


def test_a_path_crosses_planes_only_where_no_other_is_open():
    """With the left port of one bond and the right port of the other down, what is left crosses, and carries all."""
    controller = controller_of_all_paths()
    flows = flows_of("j", "h0/0", "h4/0")
    down = {
        hop
        for hop, plane in PLANES.items()
        if (hop in of_nic("h0/0") and plane == 0) or (hop in of_nic("h4/0") and plane)
    }
    controller.health.mark_lost(down, 0.0)
    controller.join(flows)
    assert set(crossing(controller, flows)) == {flow.id for flow in flows}


def test_planes_are_those_of_the_ports_by_which_bonds_send():
    """A bond's links are in the planes of its ports, at both ends; one whose ports look alike keeps what was known."""
    traces = {
        (source.name, target.name, port): hops
        for source in NICS.values()
        for target in NICS.values()
        if source is not target
        for port, hops in enumerate(switch_paths(source, target), start=1)
    }

    def leaving(source, target, port):
        return PLANES[traces[source.name, target.name, port][0]]

    planes = BondPlanes(NICS, nic_links(), leaving)
    assert planes.by_hop(traces) == PLANES
    one_port = {key: hops for key, hops in traces.items() if PLANES[hops[0]] == 0}
    stuck = BondPlanes(NICS, nic_links(), lambda _source, _target, port: port % 2)
    assert stuck.by_hop(one_port) == {}
    assert planes.by_hop(one_port) == PLANES


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_that_is_left_alone_uses_both_ports(others):
    """When one of two jobs on the same bonds ends, the other gets both ports, whether or not others share theirs."""
    controller = controller_of_all_paths()
    shared = [flows_of(f"other{n}", "h1/0", "h5/0") for n in range(others)]
    left, ended = (flows_of(job, "h0/0", "h4/0") for job in ("left", "ended"))
    for flows in (left, ended, *shared):
        for connection in (flows[:QPS], flows[QPS:]):
            controller.join(connection)
    controller.forget("ended")
    carried = carried_bps(controller, left)
    # The division of a connection is within 0.3 % of the best.
    assert list(carried.values()) == pytest.approx([5e9] * 2 * 2 * 2, rel=0.003)


def flows_of(job, one, other):
    """The flows of a job between two NICs: first those of one direction, then those of the other."""
    return [
        Flow(f"{job}/{job}:data/{rank}>{1 - rank}/0.{qp}", job, source, target, NICS[source].rate_bps / QPS)
        for rank, (source, target) in enumerate(((one, other), (other, one)))
        for qp in range(QPS)
    ]


def carried_bps(controller, flows):
    """What these flows offer to the ports at both ends of their paths, bit/s by hop."""
    carried = Counter()
    for flow in flows:
        hops = controller.path(flow.id).hops
        for hop in (hops[0], hops[-1]):
            carried[hop] += controller.weight(flow.id) * NICS[flow.source].rate_bps
    return carried


def of_nic(name):
    """The links to and from a NIC."""
    ends = {f"{NICS[name].address}@{port.switch}" for port in TOPOLOGY.ports if port.nic.name == name}
    return ends | {port.switch_addresses[0] for port in TOPOLOGY.ports if port.nic.name == name}


def crossing(controller, flows):
    """The flows whose path begins in one plane and ends in the other."""
    ends = {flow.id: [PLANES[controller.path(flow.id).hops[end]] for end in (0, -1)] for flow in flows}
    return [flow for flow, (first, last) in ends.items() if first != last]
