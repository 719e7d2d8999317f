"""Pairs of hosts whose paths cross the fabric."""

import re

# A pair without a known path is farther apart than any other.
_UNKNOWN = 1 << 10


def crossing_pairs(hosts, atlas):
    """Disjoint pairs over all hosts with NICs, one host left over if they are odd; the order of `hosts` has no effect.

    Hosts are lined up so that each is followed by the nearest that is left, by hops and then by name. So a leaf's hosts
    stand together, and a pod's and a site's. Each host of the first half is paired with its like in the second. Paths
    are those between the hosts' first NICs.
    """
    left = sorted((host for host in hosts if host.nics), key=lambda host: _natural(host.name))
    line = left[:1]
    del left[:1]
    while left:
        nearest = min(left, key=lambda host: (_hops(atlas, line[-1], host), _natural(host.name)))
        left.remove(nearest)
        line.append(nearest)
    half = len(line) // 2
    return list(zip(line[:half], line[half : 2 * half], strict=True))


def _hops(atlas, source, target):
    paths = atlas.paths(source.nics[0].name, target.nics[0].name)
    return min((len(path.hops) for path in paths), default=_UNKNOWN)


def _natural(name):
    """`h2` before `h10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
