"""The fabric as probing found it, for the drawing in a report."""

from c4bench.c4p.knowledge.cabling import infer, tiers
from c4bench.record.artefacts import Fabric, FabricHost, FabricLink, Switch


def drawn(hosts, atlas, ports):
    """The links of known paths between NICs and switches, which have names where their `ports` are known, by hop."""
    nics_bps = {nic.name: nic.rate_bps for host in hosts for nic in host.nics}
    rates_bps = {}
    for source, destination in atlas.pairs:
        for path in atlas.paths(source, destination):
            rates_bps = dict.fromkeys(path.hops, nics_bps[source]) | rates_bps
    found = infer(atlas, {hop: port.switch for hop, port in ports.items()})
    links = {link.hop: FabricLink(link.source, link.target, rates_bps[link.hop], link.hop) for link in found}
    tier_of = tiers(found, nics_bps)
    return Fabric(
        switches=tuple(Switch(name, tier_of[name]) for name in sorted(tier_of.keys() - nics_bps.keys())),
        hosts=tuple(FabricHost(host.name, tuple(nic.name for nic in host.nics)) for host in hosts),
        links=tuple(links[hop] for hop in sorted(links)),
    )
