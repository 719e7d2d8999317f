"""Pairs of hosts across the fabric, whatever the order in which an inventory lists its hosts."""

import random
import sys
from pathlib import Path

import pytest

from c4bench.c4p.knowledge.atlas import Atlas, PathTrace
from c4bench.model.fabric import Host, Nic

sys.path.append(str(Path(__file__).parents[2] / "scenarios/c4p"))

from crossing_pairs import crossing_pairs


def fabric(places):
    """Hosts by (site, leaf), and the paths between them: 2 hops under a leaf, 4 in a site, 6 between sites."""
    hosts = [
        Host(f"h{number}", "", (Nic(f"h{number}", 0, "", "", f"10.0.{number}.1", 1e10),))
        for number in range(len(places))
    ]
    traces = []
    for source, (site, leaf) in zip(hosts, places, strict=True):
        for target, (far_site, far_leaf) in zip(hosts, places, strict=True):
            if source is not target:
                hops = 2 if (site, leaf) == (far_site, far_leaf) else 4 if site == far_site else 6
                links = (*(f"{source.name}-{target.name}-{hop}" for hop in range(hops - 1)), target.nics[0].address)
                traces.append(PathTrace(source.nics[0].name, target.nics[0].name, 49153, links))
    return hosts, Atlas.from_answers(traces)


@pytest.mark.parametrize("seed", range(10))
def test_pairs_cross_the_fabric_in_any_order_of_the_inventory(seed):
    """Sixteen hosts alternate between two leaves: every pair crosses, and shuffled hosts give the same pairs."""
    hosts, atlas = fabric([(0, number % 2) for number in range(16)])
    usual = [(a.name, b.name) for a, b in crossing_pairs(hosts, atlas)]
    assert len({name for pair in usual for name in pair}) == 16
    assert all((int(a[1:]) + int(b[1:])) % 2 for a, b in usual)
    random.Random(seed).shuffle(hosts)
    assert [(a.name, b.name) for a, b in crossing_pairs(hosts, atlas)] == usual


def test_the_farthest_are_paired():
    """With two sites of two leaves each, every pair is of both sites; names count as numbers."""
    places = [(number % 2, number // 2 % 2) for number in range(12)]
    hosts, atlas = fabric(places)
    pairs = [(int(a.name[1:]), int(b.name[1:])) for a, b in crossing_pairs(hosts, atlas)]
    assert all(places[a][0] != places[b][0] for a, b in pairs)
    assert pairs[0][0] == 0


def test_a_host_without_a_like_or_a_nic_is_left_out():
    """Five hosts with NICs are two pairs, and one without any is in none."""
    hosts, atlas = fabric([(0, 0), (0, 0), (0, 1), (0, 1), (0, 1)])
    pairs = crossing_pairs([*hosts, Host("h9", "", ())], atlas)
    assert len(pairs) == 2
    assert "h9" not in {host.name for pair in pairs for host in pair}
