"""A rank's edges: the rails to and from each peer, and the channels that use them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from c4bench.collective.memory import Buffer
from c4bench.collective.resilient.hello import FarReceiving
from c4bench.collective.resilient.mailbox import CONTROL_CHANNEL, RailMailbox
from c4bench.collective.resilient.messages import RailName
from c4bench.collective.resilient.rail import Rail, ReceivingRail, SendingRail, State
from c4bench.collective.resilient.receive_endpoint import RailReceiveEndpoint
from c4bench.collective.resilient.send_endpoint import CHANNEL_SHIFT, RailSendEndpoint

AnyRail = TypeVar("AnyRail", bound=Rail)


def _next_up(rails: Sequence[AnyRail], index: int) -> AnyRail | None:
    """The rail that is up at `index`, modulo their number; None if none is up."""
    usable = [rail for rail in rails if rail.usable]
    return usable[index % len(usable)] if usable else None


@dataclass(eq=False)
class SendingPeer:
    """The edge to a peer. Its ledger is read into `ledger_copy`; `reading` is the rail that a read is in flight on."""

    peer: int
    rails: list[SendingRail]
    senders: list[RailSendEndpoint]
    far: FarReceiving
    ledger_copy: Buffer
    control: RailMailbox
    reading: SendingRail | None = None

    def send(self, body: bytes) -> bool:
        """Send a control message by a rail; False if none is up or the message is too long."""
        rail = _next_up(self.rails, self.control.written)
        staged = self.control.stage(body, rail.nic) if rail else None
        if rail is None or staged is None:
            return False
        local, remote, length, slot = staged
        rail.write_control(local, remote, length, CONTROL_CHANNEL << CHANNEL_SHIFT | slot)
        return True

    @property
    def needed(self) -> bool:
        """Whether the running operation depends on this edge."""
        return any(sender.needed for sender in self.senders) or any(rail.lost for rail in self.rails)


@dataclass(eq=False)
class ReceivingPeer:
    """The edge from a peer. `probe_after_s` is how long without a message it takes until its rails are probed."""

    peer: int
    rails: list[ReceivingRail]
    receivers: list[RailReceiveEndpoint]
    control: RailMailbox
    last_message_ns: int = 0
    probe_after_s: float = 0.0

    def send(self, body: bytes) -> bool:
        """Send a control message by a rail; False if none is up or the message is too long."""
        rail = _next_up(self.rails, self.control.written)
        staged = self.control.stage(body, rail.nic) if rail else None
        if rail is None or staged is None:
            return False
        local, remote, length, slot = staged
        rail.write(local, remote, length, CONTROL_CHANNEL << 8 | slot)
        return True

    @property
    def needed(self) -> bool:
        """Whether the running operation depends on this edge."""
        return any(not receiver.complete for receiver in self.receivers)


Edge = SendingPeer | ReceivingPeer


@dataclass(eq=False)
class PeerRails:
    """All of a rank's edges."""

    all: list[Edge] = field(default_factory=list)
    by_name: dict[RailName, tuple[Edge, Rail]] = field(default_factory=dict)
    by_qp: dict[tuple[int, int], tuple[Edge, Rail]] = field(default_factory=dict)
    by_probe: dict[tuple[int, int], tuple[Edge, Rail]] = field(default_factory=dict)

    def add(self, edge: Edge) -> None:
        """Add an edge whose rails are connected."""
        self.all.append(edge)
        for rail in edge.rails:
            self.by_name[rail.name] = edge, rail
            self.by_qp[rail.nic, rail.ends.data.qp_num] = edge, rail
            self.by_probe[rail.nic, rail.ends.probe.qp_num] = edge, rail

    def rails(self, state: State | None = None) -> Iterator[tuple[Edge, Rail]]:
        """All rails with their edges, or those in a state."""
        for edge in self.all:
            for rail in edge.rails:
                if state is None or rail.state is state:
                    yield edge, rail

    @property
    def disturbed(self) -> bool:
        """Whether any rail is not up."""
        return any(rail.state is not State.UP for edge in self.all for rail in edge.rails)
