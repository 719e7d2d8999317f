"""One end of a rail: a directed connection between one NIC of each of two ranks, which may die and come back."""

from abc import ABC, abstractmethod
from collections import deque
from enum import Enum
from typing import NamedTuple

import msgspec

from c4bench.collective.endpoints import Message, SendEndpoint
from c4bench.collective.recorder import ArrivalWriter, ConnWriter
from c4bench.collective.resilient.messages import Fenced, RailName
from c4bench.verbs.transport import Connection, Port, Remote


class State(Enum):
    """UP: carries data. FENCED: carries nothing, and its messages in flight are being recovered. DOWN: recovered.

    TRIAL: reconnected, and being probed.
    """

    UP = "up"
    FENCED = "fenced"
    DOWN = "down"
    TRIAL = "trial"


class Ends(NamedTuple):
    """A rail's two QPs at one end: for data, and for probes, which time out sooner."""

    data: Connection
    probe: Connection


class Rail(ABC):
    """What both ends have: QPs on NIC `nic`, the rail's state and life, and when it was last known to be alive.

    `receives` counts receives posted on the data QP and not completed. A QP in the error state completes everything
    posted on it, so a fenced end is drained when no receive and no write is left.
    """

    def __init__(
        self, name: RailName, peer: int, nic: int, rate_bps: float, port: Port, ends: Ends, depth: int
    ) -> None:
        self.name, self.peer, self.nic, self.rate_bps = name, peer, nic, rate_bps
        self.port, self.ends = port, ends
        self.state = State.UP
        self.life = 1
        self.receives = 0
        self.last_alive_ns = 0
        self.last_sent_ns = 0
        self.send_count = 0
        self.probing = False
        self.why = ""
        self._depth = depth

    @property
    def usable(self) -> bool:
        """Whether new messages may use this rail."""
        return self.state is State.UP

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """The writes of this end that have not completed."""

    @property
    def drained(self) -> bool:
        """Whether everything posted has completed."""
        return not self.receives and not self.in_flight

    def here(self) -> tuple[Remote, Remote]:
        """The addresses of its QPs. The GID is looked up at each call because it may change."""
        here = self.port.here()
        return (
            msgspec.structs.replace(here, qp=self.ends.data.qp_num),
            msgspec.structs.replace(here, qp=self.ends.probe.qp_num),
        )

    def connect(self, data: Remote, probe: Remote, source_port: int = 0) -> None:
        """Connect to the far end's QPs. Probes use the path of the data."""
        self.receives = 0
        self.ends.data.connect(data, source_port, receives=self._depth)
        self.receives = self._depth
        self.ends.probe.connect(probe, self.ends.data.source_port)
        self.probing = False

    def received(self) -> None:
        """A message has arrived; post another receive."""
        self.receives -= 1
        if self.state in (State.UP, State.TRIAL):
            self.ends.data.post_receive()
            self.receives += 1

    def fence(self, why: str, now_ns: int) -> None:
        """Move the data QP to the error state, so that nothing leaves or arrives."""
        self.state, self.why = State.FENCED, why
        self.last_sent_ns, self.send_count = now_ns, 0
        if self.receives:
            # Without receives the rail has never been connected.
            self.ends.data.fence()

    def probe(self) -> None:
        """Probe the far end's NIC with a write of zero bytes, unless a probe is in flight."""
        if not self.probing:
            self.probing = True
            self.ends.probe.write((0, 0), (0, 0), 0, immediate=None, signaled=True)

    def silent_ns(self, now_ns: int) -> int:
        """How long writes have been in flight without a completion; counted from the first call."""
        self.last_alive_ns = self.last_alive_ns or now_ns
        return now_ns - self.last_alive_ns if self.in_flight else 0


class ResendingEndpoint(SendEndpoint):
    """A sending endpoint, on one channel, that can send a message again by another rail."""

    channel: int

    @abstractmethod
    def resend(self, sent: "Sent", now_ns: int) -> bool:
        """Send a message again that was lost with its rail; False if no rail is up."""


class Sent(NamedTuple):
    """A message in flight, with what is needed to send it again."""

    sender: ResendingEndpoint
    message: Message
    seq: int
    number: int


class SendingRail(Rail):
    """The end that writes data. `lost` were in flight when it was fenced; `answer` reports which of them arrived."""

    def __init__(
        self,
        name: RailName,
        nic: int,
        rate_bps: float,
        port: Port,
        ends: Ends,
        depth: int,
        record: ConnWriter,
    ) -> None:
        super().__init__(name, name.destination, nic, rate_bps, port, ends, depth)
        self.record = record
        # None stands for a control message, which no operation waits for.
        self.sent: deque[Sent | None] = deque()
        self.lost: list[Sent] = []
        self.answer: Fenced | None = None
        # The next time to try to reconnect, the delay after a failure, and since when the rail has been up.
        self.retry_ns = 0
        self.penalty_s = 0.0
        self.up_ns = 0
        self.good_ns = 0
        self.accepted = False
        self.source_port = 0

    @property
    def in_flight(self) -> int:
        """See Rail."""
        return len(self.sent)

    def write(self, sent: Sent, local: tuple[int, int], remote: tuple[int, int], immediate: int, now_ns: int) -> None:
        """Post a message."""
        if not self.sent:
            self.last_alive_ns = now_ns
        self.sent.append(sent)
        self.ends.data.write(local, remote, sent.message.length, immediate=immediate, signaled=True)
        self.record.post(now_ns)

    def write_control(self, local: tuple[int, int], remote: tuple[int, int], length: int, immediate: int) -> None:
        """Write a control message."""
        if not self.sent:
            self.last_alive_ns = 0
        self.sent.append(None)
        self.ends.data.write(local, remote, length, immediate=immediate, signaled=True)

    def move(self, source_port: int) -> None:
        """Move data and probes to another path. Nothing may be in flight."""
        self.source_port = source_port
        if self.state is State.UP:
            self.ends.data.move(source_port)
            self.ends.probe.move(source_port)
            self.record.move(self.ends.data.source_port)

    def acknowledged(self, now_ns: int) -> Sent | None:
        """The oldest message in flight is acknowledged; returns it, None if it was a control message."""
        self.last_alive_ns = now_ns
        sent = self.sent.popleft()
        if sent is not None:
            self.record.acknowledge(sent.message.length, now_ns)
        return sent

    def lose(self) -> None:
        """The oldest message in flight has failed, and may not have arrived."""
        sent = self.sent.popleft()
        if sent is not None:
            self.lost.append(sent)


class ReceivingRail(Rail):
    """The end that grants. `fence_acknowledged`: the sender knows that this end is fenced.

    `record` is set once the far end is known.
    """

    record: ArrivalWriter

    def __init__(self, name: RailName, nic: int, rate_bps: float, port: Port, ends: Ends, depth: int) -> None:
        super().__init__(name, name.source, nic, rate_bps, port, ends, depth)
        self.fence_acknowledged = False
        self._grants = 0

    @property
    def in_flight(self) -> int:
        """See Rail."""
        return self._grants

    def write(self, local: tuple[int, int], remote: tuple[int, int], length: int, immediate: int) -> None:
        """Write a grant or a control message."""
        if not self._grants:
            self.last_alive_ns = 0
        self._grants += 1
        self.ends.data.write(local, remote, length, immediate=immediate, signaled=True)

    def completed(self) -> None:
        """The oldest grant has completed, with or without success."""
        self._grants -= 1
        self.last_alive_ns = 0
