"""Control messages by the rails: faster than the relay, and independent of the management network."""

from collections.abc import Sequence

from c4bench.collective.memory import Buffers
from c4bench.collective.resilient.hello import Box
from c4bench.verbs.transport import Port

# Stands for the channel in the immediate of a control message.
CONTROL_CHANNEL = 15
CONTROL_SLOTS = 16
_SLOT_BYTES = 512
_LENGTH_BYTES = 2


class RailMailbox:
    """One end's memory for the control messages of an edge. The far end writes to `box`, this end to `far`."""

    def __init__(self, buffers: Buffers, ports: Sequence[Port]) -> None:
        self._incoming = buffers.make(ports, CONTROL_SLOTS * _SLOT_BYTES)
        self._outgoing = buffers.make(ports, CONTROL_SLOTS * _SLOT_BYTES)
        self.box = Box(self._incoming.address, self._incoming.rkeys)
        self.far = self.box
        self.written = 0

    def stage(self, body: bytes, nic: int) -> tuple[tuple[int, int], tuple[int, int], int, int] | None:
        """Prepare a message to be written by a NIC; returns its local and remote address and key, length and slot.

        None for a message that is too long.
        """
        if len(body) + _LENGTH_BYTES > _SLOT_BYTES:
            return None
        slot = self.written % CONTROL_SLOTS
        self.written += 1
        at = slot * _SLOT_BYTES
        packed = len(body).to_bytes(_LENGTH_BYTES, "little") + body
        self._outgoing.view[at : at + len(packed)] = packed
        local = (self._outgoing.address + at, self._outgoing.regions[nic].lkey)
        return local, (self.far.address + at, self.far.rkeys[nic]), len(packed), slot

    def read(self, slot: int) -> bytes:
        """The message that has arrived in a slot."""
        at = slot % CONTROL_SLOTS * _SLOT_BYTES
        view = self._incoming.view[at : at + _SLOT_BYTES]
        return bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")])
