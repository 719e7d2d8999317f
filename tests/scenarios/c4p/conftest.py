"""What scenarios of path planning share: pairs of hosts across the fabric, and what its links carry between them."""

from collections import Counter
from types import MappingProxyType

import pytest
from crossing_pairs import crossing_pairs

from c4bench.c4p.conditions import Conditions
from c4bench.c4p.evaluation import least_worst_load
from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.errors import InconclusiveError
from c4bench.model.fabric import Flow
from c4bench.units import payload_bound

WRONG_OPTIMUM = 1.01


@pytest.fixture
def pairs_across(rdma_hosts, atlas, capacities):
    """`pairs_across(4)`: so many pairs of hosts whose paths cross the fabric; skip where the choice cannot matter."""

    def choose(count):
        pairs = crossing_pairs(rdma_hosts, atlas)[:count]
        if len(pairs) < count:
            pytest.skip(f"few-hosts: {len(rdma_hosts)} hosts are not {count} pairs")
        same_leaf = [f"{a.name} and {b.name}" for a, b in pairs if _common_leaf(atlas, a, b)]
        if same_leaf:
            pytest.skip(f"one-leaf: no path between {', '.join(same_leaf)} has a choice of links")
        if narrowest := _narrowest_common_link(_flows(pairs, both_ways=True), atlas, capacities):
            pytest.skip(f"common-link: all paths of these jobs cross {narrowest}, and no other link limits them more")
        return pairs

    return choose


def _common_leaf(atlas, source, target):
    return all(len(path.hops) == 2 for path in atlas.paths(source.nics[0].name, target.nics[0].name))


def _narrowest_common_link(flows, atlas, capacities):
    """The link that limits flows most, if all of their paths cross it whatever others are chosen; else None."""
    common, possible, chosen = Counter(), Counter(), set()
    for flow in flows:
        paths = [set(path.hops) for path in atlas.paths(flow.source, flow.destination)]
        always, ever = set.intersection(*paths), set.union(*paths)
        chosen |= ever - always
        for loads, hops in ((common, always), (possible, ever)):
            loads.update({hop: flow.demand_bps / capacities.get(hop, flow.demand_bps) for hop in hops})
    # The paths of a bond have no link in common: each leaves by one of two ports.
    narrowest = max(common, key=common.__getitem__, default=None)
    limits = common[narrowest] > 1.0 and all(possible[hop] <= common[narrowest] for hop in chosen)
    return narrowest if limits else None


@pytest.fixture
def capacities(atlas, rdma_hosts, switches):
    """The rates of all links that are known, bit/s by hop."""
    ports = switches.ports() if switches.any else {}
    links = NicLinks(nic for host in rdma_hosts for nic in host.nics)
    links.name_switches({hop: port.switch for hop, port in ports.items()})
    return {hop: ports[hop].rate_bps for hop in atlas.hops if hop in ports} | links.capacities()


@pytest.fixture
def contended(atlas, capacities):
    """`contended(pairs)`: skip where hashing cannot offer a link more than its rate, so that no plan can gain."""

    def check(pairs):
        offered_bps = Counter()
        for flow in _flows(pairs, both_ways=True):
            paths = atlas.paths(flow.source, flow.destination)
            offered_bps.update(dict.fromkeys({hop for path in paths for hop in path.hops}, flow.demand_bps))
        if all(offered <= capacities.get(hop, 0.0) for hop, offered in offered_bps.items()):
            pytest.skip("roomy-links: each link of this fabric carries all that these jobs can send over it")

    return check


@pytest.fixture
def optimum_bps(atlas, capacities):
    """`optimum_bps(pairs)`: the payload that each pair exchanges at best, bit/s.

    In both directions, unless `both_ways` is False; without the links of `avoid`, and with a fraction of the rate of
    those of `slow`, by hop. Each flow may be divided over any of its paths: a linear program over the links'
    capacities. A job divides its data evenly among its hosts' NICs.
    """

    def solve(pairs, avoid=frozenset(), slow=MappingProxyType({}), *, both_ways=True):
        flows = _flows(pairs, both_ways=both_ways)
        left = capacities | {hop: fraction * capacities[hop] for hop, fraction in slow.items()}
        share = min(1.0, 1 / least_worst_load(flows, atlas, Conditions(left, avoid=avoid), divisible=True))
        return share * _rails(pairs) * payload_bound(flows[0].demand_bps)

    return solve


def _flows(pairs, *, both_ways):
    """A flow by each NIC of the pairs' hosts, as fast as the slowest of all."""
    rails = _rails(pairs)
    nic_bps = min(nic.rate_bps for pair in pairs for host in pair for nic in host.nics[:rails])
    return [
        Flow(f"{a.name}>{b.name}", "optimum", a.nics[rail].name, b.nics[rail].name, nic_bps)
        for pair in pairs
        for a, b in ((pair, pair[::-1]) if both_ways else (pair,))
        for rail in range(rails)
    ]


def _rails(pairs):
    """How many NICs a job uses on each of these hosts."""
    return min(len(host.nics) for pair in pairs for host in pair)


@pytest.fixture
def uplink(atlas, ports):
    """`uplink(pairs)`: one of the ports by which the first source's leaf reaches its pair, and the link's two hops.

    So many such links must be `left` without it.
    """

    def choose(pairs, left=1):
        source, destination = (host.nics[0].name for host in pairs[0])
        hops = sorted({path.hops[1] for path in atlas.paths(source, destination)})
        if len(hops) <= left:
            without = " without one of them" if len(hops) > 1 else ""
            pytest.skip(f"one-path: {source} has no choice of links towards {destination}{without}")
        if hops[-1] not in ports.leading:
            pytest.skip("no-switches: the inventory names no switches that links could be taken down on")
        name = ports.leading[hops[-1]]
        return name, ports.addresses[name]

    return choose


@pytest.fixture
def of_optimum():
    """`of_optimum(rate_bps, optimum_bps)`: the share; more than all of it means that the optimum is wrong."""

    def share(rate_bps, optimum_bps):
        if rate_bps > WRONG_OPTIMUM * optimum_bps:
            raise InconclusiveError(
                f"{rate_bps:.4g} bit/s is more than the optimum of {optimum_bps:.4g}: that is wrong"
            )
        return rate_bps / optimum_bps

    return share
