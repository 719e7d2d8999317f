"""Fabrics that nobody drew, from a seed: links are unequal or missing, and hosts are anywhere.

`python tests/scenarios/grading/fabrics.py SEED NUMBER` prints one as a topology file.
"""

import itertools
import random
import sys

import msgspec

LEAVES, SPINES, HOSTS = (2, 4), (1, 5), (6, 8)
NIC_RATE = "10gbit"
UPLINK_RATES = ("20gbit", "10gbit", "5gbit", "2500mbit")
# How many rates a fabric's uplinks have at most, and which share of them is missing.
RATES_AT_MOST, MISSING = 3, (0.0, 0.2, 0.4)


def drawn_fabric(seed, number):
    """The `number`th fabric of a seed, as a topology file says it; every leaf has a host, and all are connected."""
    draw = random.Random(f"fabric {seed} {number}")
    leaves = [f"leaf{leaf}" for leaf in range(draw.randint(*LEAVES))]
    spines = [f"spine{spine}" for spine in range(draw.randint(*SPINES))]
    hosts = [f"h{host}" for host in range(draw.randint(*HOSTS))]
    rates = draw.sample(UPLINK_RATES, draw.randint(1, RATES_AT_MOST))
    at = leaves + draw.choices(leaves, k=len(hosts) - len(leaves))
    draw.shuffle(at)
    links = [{"between": [host, leaf], "rate": NIC_RATE} for host, leaf in zip(hosts, at, strict=True)]
    uplinks = _thinned(draw, list(itertools.product(leaves, spines)), draw.choice(MISSING))
    links += [{"between": list(uplink), "rate": draw.choice(rates)} for uplink in uplinks]
    return {
        "name": f"drawn-{seed}-{number}",
        "description": f"{len(leaves)} leaves, {len(spines)} spines, {len(hosts)} hosts, {len(uplinks)} uplinks",
        "switches": leaves + spines,
        "hosts": hosts,
        "links": links,
    }


def _thinned(draw, uplinks, share):
    """These uplinks, each left out with the chance `share`, unless the fabric falls apart without it."""
    ends = {end for uplink in uplinks for end in uplink}
    for uplink in draw.sample(uplinks, len(uplinks)):
        left = [one for one in uplinks if one != uplink]
        if draw.random() < share and _joined(ends, left):
            uplinks = left
    return uplinks


def _joined(ends, links):
    """Whether these links join all ends."""
    part = {end: {end} for end in ends}
    for one, other in links:
        both = part[one] | part[other]
        part.update(dict.fromkeys(both, both))
    return ends in part.values()


if __name__ == "__main__":
    fabric = drawn_fabric(*map(int, sys.argv[1:]))
    # JSON is YAML.
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(fabric)).decode() + "\n")
