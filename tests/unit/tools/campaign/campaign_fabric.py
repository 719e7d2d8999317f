"""A small fabric for tests of campaigns: two hosts under each leaf, every leaf on every spine."""

from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch


def leaf_spine(leaves=2, spines=2):
    """Hosts `h0`, `h1`, ... with one NIC each.

    NIC N is `10.0.N.1` behind `10.0.N.254`; the link of leaf L and spine S is `172.16.L.4*S+1` at the leaf, `+2` above.
    """
    links = []
    for host in range(2 * leaves):
        nic, leaf = f"h{host}/0", f"leaf{host // 2}"
        links += [FabricLink(nic, leaf, 1e10, f"10.0.{host}.254"), FabricLink(leaf, nic, 1e10, f"10.0.{host}.1")]
    for leaf in range(leaves):
        for spine in range(spines):
            low, high = (f"172.16.{leaf}.{4 * spine + end}" for end in (1, 2))
            ends = f"leaf{leaf}", f"spine{spine}"
            links += [FabricLink(*ends, 1e10, high), FabricLink(*ends[::-1], 1e10, low)]
    switches = [*(f"leaf{n}" for n in range(leaves)), *(f"spine{n}" for n in range(spines))]
    hosts = tuple(FabricHost(f"h{n}", (f"h{n}/0",)) for n in range(2 * leaves))
    return Fabric(tuple(Switch(name, 1 if name.startswith("leaf") else 2) for name in switches), hosts, tuple(links))
