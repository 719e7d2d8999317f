"""One end of a rail: a QP from a NIC of one rank to a NIC of another, and its messages in flight.

Rails of a resilient communicator may die and come back (`collective.resilient`); other rails stay up until an error
ends their communicator.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from enum import Enum
from typing import NamedTuple

import msgspec

from c4bench.collective.handshake import CONTROL_CHANNEL, SHARED_QPS
from c4bench.collective.memory import NicBuffers
from c4bench.collective.recorder import ArrivalWriter, ConnWriter
from c4bench.collective.schedule import ARRIVALS, Gate
from c4bench.verbs.transport import Connection, Port, Remote

# What the newest message counts for in what messages take.
_SMOOTHING = 1 / 4


class RailName(msgspec.Struct, frozen=True, array_like=True):
    """A rail: its source and destination ranks, and its index among the rails of that edge."""

    source: int
    destination: int
    index: int


class ReceiveProgress(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a channel has received: of operation `seq` all below `consumed`, and those in `ahead`."""

    seq: int
    consumed: int
    ahead: tuple[int, ...]

    def has(self, seq: int, index: int) -> bool:
        """Whether message `index` of operation `seq` has been received."""
        return self.seq > seq or (self.seq == seq and (index < self.consumed or index in self.ahead))


class RailState(Enum):
    """UP: carries data. FENCED: carries nothing, and its messages in flight are being recovered. DOWN: recovered.

    TRIAL: reconnected, and being probed.
    """

    UP = "up"
    FENCED = "fenced"
    DOWN = "down"
    TRIAL = "trial"


class RailQps(NamedTuple):
    """A rail's QPs at one end: for data, and with resilience one for probes, which time out sooner."""

    data: Connection
    probe: Connection | None = None


class Rail(ABC):
    """What both ends have: QPs on NIC `nic`, the rail's state and life, and when it was last known to be alive.

    `receives` counts receives posted on the data QP and not completed. A QP in the error state completes everything
    posted on it, so a fenced end is drained when no receive and no write is left. `awaited` is for how many ticks in a
    row a probe has been in flight.
    """

    def __init__(self, name: RailName, peer: int, nic: int, port: Port, ends: RailQps, depth: int) -> None:
        self.name, self.peer, self.nic = name, peer, nic
        self.port, self.ends = port, ends
        self.state = RailState.UP
        self.life = 1
        self.receives = 0
        self.last_alive_ns = 0
        self.last_sent_ns = 0
        self.send_count = 0
        self.probing = False
        self.awaited = 0
        self.why = ""
        self._depth = depth

    @property
    def usable(self) -> bool:
        """Whether new messages may use this rail."""
        return self.state is RailState.UP

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """The writes of this end that have not completed."""

    @abstractmethod
    def write_control(self, local: tuple[int, int], remote: tuple[int, int], length: int, slot: int) -> None:
        """Write a control message to a slot of the far end's mailbox."""

    @property
    def drained(self) -> bool:
        """Whether everything posted has completed."""
        return not self.receives and not self.in_flight

    def remotes(self, here: Remote) -> tuple[Remote, Remote]:
        """The addresses of its QPs for data and for probes, the latter 0 if there is none, on a NIC that is `here`."""
        probe = self.ends.probe.qp_num if self.ends.probe else 0
        return msgspec.structs.replace(here, qp=self.ends.data.qp_num), msgspec.structs.replace(here, qp=probe)

    def here(self) -> tuple[Remote, Remote]:
        """Its addresses now: the GID is looked up at each call because it may change."""
        return self.remotes(self.port.here())

    def connect(self, data: Remote, probe: Remote | None, source_port: int = 0) -> None:
        """Connect to the far end's QPs. Probes use the path of the data."""
        self.receives = 0
        self.ends.data.connect(data, source_port, receives=self._depth)
        self.receives = self._depth
        if self.ends.probe and probe:
            self.ends.probe.connect(probe, self.ends.data.source_port)
        self.probing = False

    def received(self) -> None:
        """A message has arrived; post another receive."""
        self.receives -= 1
        if self.state in (RailState.UP, RailState.TRIAL):
            self.ends.data.post_receive()
            self.receives += 1

    def fence(self, why: str, now_ns: int) -> None:
        """Move the data QP to the error state, so that nothing leaves or arrives."""
        self.state, self.why = RailState.FENCED, why
        self.last_sent_ns, self.send_count = now_ns, 0
        if self.receives:
            # Without receives the rail has never been connected.
            self.ends.data.fence()

    def probe(self) -> None:
        """Probe the far end's NIC with a write of zero bytes, unless a probe is in flight."""
        if not self.probing and self.ends.probe:
            self.probing, self.awaited = True, 0
            self.ends.probe.write((0, 0), (0, 0), 0, immediate=None, signaled=True)

    def silent_ns(self, now_ns: int) -> int:
        """How long writes have been in flight without a completion; counted from the first call."""
        self.last_alive_ns = self.last_alive_ns or now_ns
        return now_ns - self.last_alive_ns if self.in_flight else 0


class Message(NamedTuple):
    """A message to write: from `start` of a buffer, `length` bytes, to `offset` in the receiver's array.

    It may be sent once `needs` arrivals of its transfer have passed `gate`.
    """

    source: NicBuffers
    start: int
    length: int
    offset: int
    staged: bool
    needs: int
    gate: Gate = ARRIVALS


class InFlight(NamedTuple):
    """A message of a channel in flight, with what is needed to send it again."""

    channel: int
    message: Message
    seq: int
    number: int
    posted_ns: int


class SendingRail(Rail):
    """The end that writes data. `lost` were in flight when it was fenced; `answer` says, by channel, what has arrived.

    `record` is set once the far end is known.
    """

    record: ConnWriter

    def __init__(self, name: RailName, nic: int, rate_bps: float, port: Port, ends: RailQps, depth: int) -> None:
        super().__init__(name, name.destination, nic, port, ends, depth)
        self.rate_bps = rate_bps
        # None stands for a control message, which no operation waits for.
        self.sent: deque[InFlight | None] = deque()
        self.lost: list[InFlight] = []
        self.answer: tuple[ReceiveProgress, ...] | None = None
        # The next time to try to reconnect, the delay after a failure, and since when the rail has been up.
        self.retry_ns = 0
        self.penalty_s = 0.0
        self.up_ns = 0
        self.good_ns = 0
        self.accepted = False
        self.source_port = 0
        self._message_ns = math.inf

    @property
    def in_flight(self) -> int:
        """See Rail."""
        return len(self.sent)

    def write(
        self, sent: InFlight, local: tuple[int, int], remote: tuple[int, int], immediate: int, now_ns: int
    ) -> None:
        """Post a message."""
        if not self.sent:
            self.last_alive_ns = now_ns
        self.ends.data.write(local, remote, sent.message.length, immediate=immediate, signaled=True)
        self.sent.append(sent)
        self.record.post(now_ns)

    def write_control(self, local: tuple[int, int], remote: tuple[int, int], length: int, slot: int) -> None:
        """See Rail."""
        if not self.sent:
            self.last_alive_ns = 0
        self.sent.append(None)
        immediate = SHARED_QPS.data(CONTROL_CHANNEL, 0, slot)
        self.ends.data.write(local, remote, length, immediate=immediate, signaled=True)

    @property
    def next_takes_ns(self) -> float:
        """How long a further message would take, by what messages have lately taken each; infinite before the first."""
        return (self.in_flight + 1) * self._message_ns

    def move(self, source_port: int) -> None:
        """Move data and probes to another path. Nothing may be in flight.

        Raises VerbsError where the device refuses; the rail then keeps its path, also when it connects again.
        """
        if self.state is RailState.UP:
            self.ends.data.move(source_port)
            if self.ends.probe:
                self.ends.probe.move(source_port)
            self.record.move(self.ends.data.source_port)
        self.source_port = source_port

    def acknowledged(self, now_ns: int) -> InFlight | None:
        """The oldest message in flight is acknowledged; returns it, None if it was a control message."""
        # Since the message before it was acknowledged, or since it was posted if there was none.
        took_ns = now_ns - self.last_alive_ns
        self.last_alive_ns = now_ns
        sent = self.sent.popleft()
        if sent is not None:
            known = self._message_ns if math.isfinite(self._message_ns) else took_ns
            self._message_ns = known + (took_ns - known) * _SMOOTHING
            self.record.acknowledge(sent.message.length, now_ns)
        return sent

    def lose(self) -> None:
        """The oldest message in flight has failed, and may not have arrived."""
        sent = self.sent.popleft()
        if sent is not None:
            self.lost.append(sent)


class ReceivingRail(Rail):
    """The end that grants; one in `signal_every` of its writes is signaled, which says that those before it ended too.

    `fence_acknowledged`: the sender knows that this end is fenced. `record` is set once the far end is known.
    """

    record: ArrivalWriter

    def __init__(self, name: RailName, nic: int, port: Port, ends: RailQps, depth: int, signal_every: int = 1) -> None:
        super().__init__(name, name.source, nic, port, ends, depth)
        self.fence_acknowledged = False
        self._in_flight = self._writes = 0
        self._signal_every = signal_every

    @property
    def in_flight(self) -> int:
        """See Rail."""
        return self._in_flight

    def write(self, local: tuple[int, int], remote: tuple[int, int], length: int, immediate: int) -> None:
        """Write a grant or a notice."""
        if not self._in_flight:
            self.last_alive_ns = 0
        self._in_flight += 1
        self._writes += 1
        signaled = self._writes % self._signal_every == 0
        self.ends.data.write(local, remote, length, immediate=immediate, signaled=signaled)

    def write_control(self, local: tuple[int, int], remote: tuple[int, int], length: int, slot: int) -> None:
        """See Rail."""
        self.write(local, remote, length, SHARED_QPS.slot(CONTROL_CHANNEL, slot))

    def completed(self) -> None:
        """The oldest signaled write has completed, with or without success."""
        self._in_flight -= self._signal_every
        self.last_alive_ns = 0
