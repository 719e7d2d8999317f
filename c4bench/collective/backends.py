"""What a communicator's ends are made of: how they are wired, driven, and how they address memory."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from c4bench.collective.engine import Engine
from c4bench.collective.memory import Array, Registrations
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.transfer_plan import Place
from c4bench.collective.wiring import RankEndpointContext, Wired, wire


class TransportBackend(Protocol):
    """One of the ways to connect ranks."""

    @property
    def engine(self) -> Engine:
        """What drives operations over it."""

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """Connect to the ranks `to` and from the ranks `back` (see `wiring.wire`)."""

    def place(self, array: Array, channel: int, registrations: Sequence[Registrations]) -> Place:
        """Where messages of a channel find an array. Raises MemoryError."""


class ChannelBackend:
    """Each channel has QPs of its own, on one NIC."""

    def __init__(self, site: RankEndpointContext, alarm: FailureSignal, undo: ExitStack) -> None:
        options = site.options
        self._site = site
        self.engine = Engine(site.ports, alarm, options.completions, options.clock_ns, options.timeout_s)
        undo.callback(self.engine.close)

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """See Fabric."""
        return wire(self._site, key, to, back, staged=staged)

    def place(self, array: Array, channel: int, registrations: Sequence[Registrations]) -> Place:
        """See Fabric."""
        region, shift = registrations[channel].find(array)
        return Place(array.ctypes.data + shift, region.lkey, region.rkey)
