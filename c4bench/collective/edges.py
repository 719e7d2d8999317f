"""A rank's edges: the rails to and from each peer, and the channels that use them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.handshake import ReceivingEnd
from c4bench.collective.inside import InsideEdges
from c4bench.collective.memory import Buffer, ChannelMemory
from c4bench.collective.rail import Rail, RailName, RailState, ReceivingRail, SendingRail

CONTROL_SLOTS = 16
_SLOT_BYTES = 512
CONTROL_BYTES = CONTROL_SLOTS * _SLOT_BYTES
_LENGTH_BYTES = 2
# A rank counts the operations that it has ended where its peers may read it: all messages of those have arrived.
LEDGER_BYTES = 8


class RailMailbox:
    """One end's memory for control messages by the rails of an edge. The far end writes to it, this end to `far`.

    Rails are faster than the relay, and independent of the management network. `far` is an address, and a key by NIC.
    """

    def __init__(self, incoming: Buffer, outgoing: Buffer) -> None:
        self.incoming, self._outgoing = incoming, outgoing
        self.far: tuple[int, list[int]] = (0, [])
        self._written = 0

    def send(self, rails: Sequence[Rail], body: bytes) -> bool:
        """Send a control message by a rail; False if none is up or the message is too long."""
        usable = [rail for rail in rails if rail.usable]
        if not usable or len(body) + _LENGTH_BYTES > _SLOT_BYTES:
            return False
        rail = usable[self._written % len(usable)]
        slot = self._written % CONTROL_SLOTS
        self._written += 1
        at = slot * _SLOT_BYTES
        packed = len(body).to_bytes(_LENGTH_BYTES, "little") + body
        self._outgoing.view[at : at + len(packed)] = packed
        address, rkeys = self.far
        local = (self._outgoing.address + at, self._outgoing.regions[rail.nic].lkey)
        rail.write_control(local, (address + at, rkeys[rail.nic]), len(packed), slot)
        return True

    def read(self, slot: int) -> bytes:
        """The message that has arrived in a slot."""
        at = slot % CONTROL_SLOTS * _SLOT_BYTES
        view = self.incoming.view[at : at + _SLOT_BYTES]
        return bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")])


@dataclass(eq=False)
class SendingPeer:
    """The edge to a peer. With resilience, its ledger is read into `ledger_copy`; `reading` is the rail that reads."""

    peer: int
    rails: list[SendingRail]
    senders: dict[int, SendEndpoint]
    control: RailMailbox | None = None
    mailbox: Mapping[int, ChannelMemory] = field(default_factory=dict)
    far: Mapping[int, ReceivingEnd] = field(default_factory=dict)
    ledger_copy: Buffer | None = None
    reading: SendingRail | None = None

    @property
    def needed(self) -> bool:
        """Whether the running operation depends on this edge."""
        return any(sender.needed for sender in self.senders.values()) or any(rail.lost for rail in self.rails)


@dataclass(eq=False)
class ReceivingPeer:
    """The edge from a peer. `probe_after_s` is how long without a message it takes until its rails are probed."""

    peer: int
    rails: list[ReceivingRail]
    receivers: dict[int, ReceiveEndpoint]
    control: RailMailbox | None = None
    outbox: Mapping[int, ChannelMemory] = field(default_factory=dict)
    staging: Mapping[int, ChannelMemory] = field(default_factory=dict)
    quiet_s: float = 0.0
    last_message_ns: int = 0
    probe_after_s: float = 0.0

    def begin_waiting(self, now_ns: int) -> None:
        """A message has come, or an operation begins: only now does it become silent."""
        self.last_message_ns, self.probe_after_s = now_ns, self.quiet_s

    @property
    def needed(self) -> bool:
        """Whether the running operation depends on this edge."""
        return any(not receiver.complete for receiver in self.receivers.values())


Edge = SendingPeer | ReceivingPeer


@dataclass(eq=False)
class PeerRails:
    """All of a rank's edges: those over NICs, and those inside its host."""

    all: list[Edge] = field(default_factory=list)
    inside: InsideEdges = field(default_factory=InsideEdges)
    by_name: dict[RailName, tuple[Edge, Rail]] = field(default_factory=dict)
    by_qp: dict[tuple[int, int], tuple[Edge, Rail]] = field(default_factory=dict)
    by_probe: dict[tuple[int, int], tuple[Edge, Rail]] = field(default_factory=dict)

    def add(self, edge: Edge) -> None:
        """Add an edge whose rails are connected."""
        self.all.append(edge)
        for rail in edge.rails:
            self.by_name[rail.name] = edge, rail
            self.by_qp[rail.nic, rail.ends.data.qp_num] = edge, rail
            if rail.ends.probe:
                self.by_probe[rail.nic, rail.ends.probe.qp_num] = edge, rail

    def senders(self) -> Iterator[SendEndpoint]:
        """All sending endpoints."""
        for edge in self.all:
            if isinstance(edge, SendingPeer):
                yield from edge.senders.values()
        for link in self.inside.outgoing:
            yield from link.senders.values()

    def rails(self, state: RailState | None = None) -> Iterator[tuple[Edge, Rail]]:
        """All rails with their edges, or those in a state."""
        for edge in self.all:
            for rail in edge.rails:
                if state is None or rail.state is state:
                    yield edge, rail
