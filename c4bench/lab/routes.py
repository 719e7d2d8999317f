"""Routes of a fabric: every switch forwards over all shortest paths (ECMP), as OSPF with equal costs would."""

from collections import defaultdict
from collections.abc import Collection

from c4bench.lab.topology import Link, LinkEnd, Topology
from c4bench.model.graph import distances

# By the number of a subnet: the links that a switch forwards over to it, each with the end it leaves by.
NextHops = dict[int, tuple[tuple[Link, LinkEnd], ...]]


def next_hops(
    topology: Topology, dead: Collection[int] = frozenset(), unusable: Collection[tuple[int, str]] = frozenset()
) -> dict[str, NextHops]:
    """The next hops of every switch to the subnets of all other edge switches (`Topology.subnets`).

    `dead` are the numbers of links that all switches know to be dead; `unusable` are links, each with the name of a
    switch at its end, that only this switch does not use yet.
    """
    alive = [link for link in topology.links if link.number not in dead]
    neighbours: dict[str, list[str]] = defaultdict(list)
    incident: dict[str, list[Link]] = defaultdict(list)
    for link in alive:
        for end in link.ends:
            neighbours[end.switch].append(link.far_end(end.switch).switch)
            incident[end.switch].append(link)
    routes: dict[str, NextHops] = {switch.name: {} for switch in topology.switches}
    for number, edges in topology.subnets.items():
        away = distances(edges, neighbours)
        for switch in topology.switches:
            if switch.name not in edges:
                here = away.get(switch.name, 0)
                routes[switch.name][number] = tuple(
                    (link, near_end(link, switch.name))
                    for link in incident[switch.name]
                    if (link.number, switch.name) not in unusable
                    and away.get(link.far_end(switch.name).switch, here) < here
                )
    return routes


def near_end(link: Link, switch: str) -> LinkEnd:
    """The end of a link that is at `switch`."""
    return link.lower if link.lower.switch == switch else link.upper
