"""The transport backend of resilient communicators (see `collective.backends`)."""

from collections.abc import Sequence
from contextlib import ExitStack

from c4bench.collective.channel_transfer import NicBuffer
from c4bench.collective.memory import Array, Registrations
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.resilient.engine import RailEngine
from c4bench.collective.resilient.keys import Keyring
from c4bench.collective.resilient.repair import LEDGER_BYTES
from c4bench.collective.resilient.send_endpoint import MAX_CHANNELS
from c4bench.collective.resilient.wiring import RailWiring
from c4bench.collective.wiring import RankEndpointContext, Wired
from c4bench.errors import UsageError


class RailBackend:
    """Channels that share the rails to each peer. Every array is registered with every NIC."""

    def __init__(self, site: RankEndpointContext, alarm: FailureSignal, undo: ExitStack) -> None:
        ports = site.ports
        if len(ports) > MAX_CHANNELS:
            raise UsageError(f"{len(ports)} NICs; a resilient communicator uses at most {MAX_CHANNELS}: give channels")
        relay = site.process.rendezvous.relay(site.comm, site.rank)
        undo.callback(relay.close)
        ledger = site.buffers.make(ports, LEDGER_BYTES)
        self._keys = Keyring()
        self.engine = RailEngine(site, alarm, relay, ledger, self._keys)
        undo.callback(self.engine.close)
        self._wiring = RailWiring(site, self.engine, ledger, self._keys)

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """See TransportBackend."""
        return self._wiring.wire(key, to, back, staged=staged)

    def buffer(self, array: Array, channel: int, registrations: Sequence[Registrations]) -> NicBuffer:  # noqa: ARG002
        """See TransportBackend. All channels use the same address, and a handle for the keys."""
        handle = self._keys.add([each.find(array) for each in registrations])
        return NicBuffer(array.ctypes.data, handle, handle)
