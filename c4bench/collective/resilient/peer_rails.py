"""A rank's edges: the rails to and from each peer, the channels that use them, and how to find them again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from c4bench.collective.memory import Buffer
from c4bench.collective.resilient.hello import FarReceiving
from c4bench.collective.resilient.mailbox import WORD_CHANNEL, RailMailbox
from c4bench.collective.resilient.messages import RailName
from c4bench.collective.resilient.rail import Rail, ReceivingRail, SendingRail, State
from c4bench.collective.resilient.receive_endpoint import RailReceiveEndpoint
from c4bench.collective.resilient.send_endpoint import CHANNEL_SHIFT, RailSendEndpoint

AnyRail = TypeVar("AnyRail", bound=Rail)


def _next_up(rails: Sequence[AnyRail], turn: int) -> AnyRail | None:
    """Rails that are up, in turn; None where none is."""
    usable = [rail for rail in rails if rail.usable]
    return usable[turn % len(usable)] if usable else None


@dataclass(eq=False)
class SendingPeer:
    """To a peer. `glance` is where its ledger is read to; `reading` while a read of it is under way."""

    peer: int
    rails: list[SendingRail]
    outlets: list[RailSendEndpoint]
    far: FarReceiving
    glance: Buffer
    post: RailMailbox
    reading: SendingRail | None = None

    def tell(self, body: bytes) -> bool:
        """Tell the peer by a rail; False where none is up."""
        rail = _next_up(self.rails, self.post.told)
        put = self.post.put(body, rail.nic) if rail else None
        if rail is None or put is None:
            return False
        local, remote, length, slot = put
        rail.post(local, remote, length, WORD_CHANNEL << CHANNEL_SHIFT | slot)
        return True

    @property
    def wanted(self) -> bool:
        """Whether the running operation cannot end without it."""
        return any(outlet.wanted for outlet in self.outlets) or any(rail.lost for rail in self.rails)


@dataclass(eq=False)
class ReceivingPeer:
    """From a peer. `heard_ns`: when a message last came; `patience_s`: how much silence it takes to ask after it."""

    peer: int
    rails: list[ReceivingRail]
    inlets: list[RailReceiveEndpoint]
    post: RailMailbox
    heard_ns: int = 0
    patience_s: float = 0.0

    def tell(self, body: bytes) -> bool:
        """Tell the peer by a rail; False where none is up."""
        rail = _next_up(self.rails, self.post.told)
        put = self.post.put(body, rail.nic) if rail else None
        if rail is None or put is None:
            return False
        local, remote, length, slot = put
        rail.write(local, remote, length, WORD_CHANNEL << 8 | slot)
        return True

    @property
    def wanted(self) -> bool:
        """Whether the running operation cannot end without it."""
        return any(not inlet.complete for inlet in self.inlets)


Edge = SendingPeer | ReceivingPeer


@dataclass(eq=False)
class PeerRails:
    """All of a rank's edges."""

    all: list[Edge] = field(default_factory=list)
    by_name: dict[RailName, tuple[Edge, Rail]] = field(default_factory=dict)
    by_qp: dict[tuple[int, int], tuple[Edge, Rail]] = field(default_factory=dict)
    by_probe: dict[tuple[int, int], tuple[Edge, Rail]] = field(default_factory=dict)

    def add(self, edge: Edge) -> None:
        """Keep an edge whose rails are connected."""
        self.all.append(edge)
        for rail in edge.rails:
            self.by_name[rail.name] = edge, rail
            self.by_qp[rail.nic, rail.ends.data.qp_num] = edge, rail
            self.by_probe[rail.nic, rail.ends.probe.qp_num] = edge, rail

    def rails(self, state: State | None = None) -> Iterator[tuple[Edge, Rail]]:
        """All rails, or those in a state."""
        for edge in self.all:
            for rail in edge.rails:
                if state is None or rail.state is state:
                    yield edge, rail

    @property
    def disturbed(self) -> bool:
        """Whether any rail is not up."""
        return any(rail.state is not State.UP for edge in self.all for rail in edge.rails)
