"""Which packets between hosts cross a switch's port, by the atlas: for witnesses on the path of the data."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from c4bench.c4p.knowledge.atlas import Atlas
from c4bench.c4p.knowledge.link_names import name_links
from c4bench.inject.path_witness import Crossing
from c4bench.model.fabric import FIVE_TUPLE, Host
from c4bench.model.fault import FaultRequest
from c4bench.model.graph import FabricGraph


class SwitchPort(Protocol):
    """A port of a switch; `rate_bps` is 0 where it is not stated."""

    @property
    def switch(self) -> str:
        """The switch's name."""

    @property
    def interface(self) -> str:
        """The port's name there."""

    @property
    def rate_bps(self) -> float:
        """How fast it can send."""


class KnownCrossings:
    """The crossings of an atlas's paths; `ports` are the switches' ports by address."""

    def __init__(
        self, atlas: Atlas, graph: FabricGraph | None, ports: Mapping[str, SwitchPort], hosts: Iterable[Host]
    ) -> None:
        self._atlas = atlas
        self._rates = {(port.switch, port.interface): port.rate_bps for port in ports.values()}
        places = {address: (port.switch, port.interface) for address, port in ports.items()}
        self._names = name_links(atlas, graph, places).names
        self._nics = {nic.name: nic for host in hosts for nic in host.nics}

    def __call__(self, request: FaultRequest) -> Crossing | None:
        """Packets over a port in the direction that the fault hurts, of both that in which it sends.

        None where the atlas has no such path, or where a source port does not decide it alone.
        """
        if self._atlas.hash != FIVE_TUPLE:
            return None
        receives = request.parameters.get("direction") == "rx"
        hops = {hop for hop, name in self._names.items() if name.split(" > ")[receives] == request.where}
        rate_bps = self._rates.get((request.host, request.port or ""), 0.0)
        for source, target in self._atlas.pairs:
            ports = [path.source_port for path in self._atlas.paths(source, target) if not hops.isdisjoint(path.hops)]
            if ports and source in self._nics and target in self._nics:
                return Crossing(self._nics[source], self._nics[target], ports[0], rate_bps=rate_bps)
        return None
