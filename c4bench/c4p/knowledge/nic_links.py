"""The links that lead to NICs: their names as hops, and their capacities. Pure.

A hop is the address at the far end of a link, and so a NIC's link is named by the NIC's address. A bond has one address
and a link to each of its ports: their names add the switch that they come from. A switch is called by its name where
the switches' ports are known, else by the address at which packets entered it.
"""

from collections.abc import Iterable, Mapping

from c4bench.model.fabric import Nic

_FROM = "@"


def is_port(hop: str) -> bool:
    """Whether a hop is the link to one port of a bond."""
    return _FROM in hop


class NicLinks:
    """The links that lead to these NICs."""

    def __init__(self, nics: Iterable[Nic]) -> None:
        self._nics = {nic.name: nic for nic in nics}
        self._switches: Mapping[str, str] = {}

    def name_switches(self, switches: Mapping[str, str]) -> None:
        """Call switches by these names from now on, by the addresses of their ports."""
        self._switches = switches

    def cables(self, nic: str) -> int:
        """How many cables a NIC has."""
        return self._nics[nic].cables

    def last_hop(self, nic: str, entry: str | None) -> str:
        """The link to a NIC from the switch that packets enter at the address `entry`; None where that is not known."""
        address = self._nics[nic].address
        if self.cables(nic) == 1 or entry is None:
            return address
        return f"{address}{_FROM}{self._switches.get(entry.partition('%')[0], entry)}"

    def capacities(self) -> dict[str, float]:
        """The rates of these links, bit/s by hop, as far as they and the names of switches are known."""
        names = sorted(set(self._switches.values()))
        rates: dict[str, float] = {}
        for nic in (nic for nic in self._nics.values() if nic.rate_bps):
            ends = [f"{nic.address}{_FROM}{name}" for name in names] if nic.bond else [nic.address]
            rates |= dict.fromkeys(ends, nic.cable_bps)
        return rates
