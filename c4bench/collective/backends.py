"""Transport backends: how a communicator's endpoints are connected, driven, and given memory."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from c4bench.collective.channel_transfer import NicBuffer
from c4bench.collective.engine import Engine
from c4bench.collective.memory import Array, Registrations
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.wiring import RankEndpointContext, Wired, wire


class TransportBackend(Protocol):
    """Connects ranks."""

    @property
    def engine(self) -> Engine:
        """Runs operations over this backend's connections."""

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """Connect to the ranks `to` and from the ranks `back` (see `wiring.wire`)."""

    def buffer(self, array: Array, channel: int, registrations: Sequence[Registrations]) -> NicBuffer:
        """An array as a channel's messages address it. Raises MemoryError if it cannot be registered."""


class ChannelBackend:
    """One NIC for each channel, with its own QPs. The first failed connection ends the operation."""

    def __init__(self, site: RankEndpointContext, alarm: FailureSignal, undo: ExitStack) -> None:
        options = site.options
        self._site = site
        self.engine = Engine(site.ports, alarm, options.completions, options.clock_ns, options.timeout_s)
        undo.callback(self.engine.close)

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """See TransportBackend."""
        return wire(self._site, key, to, back, staged=staged)

    def buffer(self, array: Array, channel: int, registrations: Sequence[Registrations]) -> NicBuffer:
        """See TransportBackend."""
        region, shift = registrations[channel].find(array)
        return NicBuffer(array.ctypes.data + shift, region.lkey, region.rkey)
