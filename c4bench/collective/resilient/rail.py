"""One end of a rail: a directed connection between two ranks by one NIC of each, that may die and come back."""

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from c4bench.collective.endpoints import Message
from c4bench.collective.recorder import ArrivalWriter, ConnWriter
from c4bench.collective.resilient.messages import Fenced, RailName
from c4bench.verbs.transport import Connection, Port, Remote

if TYPE_CHECKING:
    from c4bench.collective.resilient.send_endpoint import RailSendEndpoint


class State(Enum):
    """UP carries data. FENCED does not any more, and what was in flight is being settled. DOWN is settled.

    TRIAL is connected again, and has to prove itself.
    """

    UP = "up"
    FENCED = "fenced"
    DOWN = "down"
    TRIAL = "trial"


class Ends(NamedTuple):
    """A rail's two QPs at one end: for data, and for probes, which give up sooner."""

    data: Connection
    probe: Connection


class Rail:
    """What both ends have: QPs on NIC `nic`, the rail's state and life, and when it last proved to be alive.

    `receives` are posted on the data QP and not completed: a fenced end is drained when none are left and nothing of
    its own is in flight, for a QP in error completes everything that was posted on it.
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
        """Whether new messages may go by it."""
        return self.state is State.UP

    @property
    def in_flight(self) -> int:
        """Writes of this end that have not completed."""
        raise NotImplementedError

    @property
    def drained(self) -> bool:
        """Whether nothing that was posted can still complete."""
        return not self.receives and not self.in_flight

    def here(self) -> tuple[Remote, Remote]:
        """The addresses of its QPs; the GID is looked up now, since it may have moved."""
        here = self.port.here()
        return (
            msgspec.structs.replace(here, qp=self.ends.data.qp_num),
            msgspec.structs.replace(here, qp=self.ends.probe.qp_num),
        )

    def connect(self, data: Remote, probe: Remote, source_port: int = 0) -> None:
        """Connect to the far end's QPs. Probes take the path that data takes."""
        self.receives = 0
        self.ends.data.connect(data, source_port, receives=self._depth)
        self.receives = self._depth
        self.ends.probe.connect(probe, self.ends.data.source_port)
        self.probing = False

    def received(self) -> None:
        """A message has come; post a receive in place of the one it took."""
        self.receives -= 1
        if self.state in (State.UP, State.TRIAL):
            self.ends.data.post_receive()
            self.receives += 1

    def fence(self, why: str, now_ns: int) -> None:
        """Have nothing leave or arrive by it from now on."""
        self.state, self.why = State.FENCED, why
        self.last_sent_ns, self.send_count = now_ns, 0
        if self.receives:
            # One without receives has never been connected: nothing leaves or arrives by it as it is.
            self.ends.data.fence()

    def probe(self) -> None:
        """Ask the far end's NIC for a sign of life, with zero bytes, unless it is being asked."""
        if not self.probing:
            self.probing = True
            self.ends.probe.write((0, 0), (0, 0), 0, immediate=None, signaled=True)

    def silent_ns(self, now_ns: int) -> int:
        """How long something has been in flight without a sign of life; counted from when that is first asked."""
        self.last_alive_ns = self.last_alive_ns or now_ns
        return now_ns - self.last_alive_ns if self.in_flight else 0


class Sent(NamedTuple):
    """A message in flight, and what is needed to send it again."""

    sender: "RailSendEndpoint"
    message: Message
    seq: int
    number: int


class SendingRail(Rail):
    """The end that writes data. `lost` were in flight when it was fenced; `answer` says which of them have arrived."""

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
        # None stands for a word: nobody waits for its arrival.
        self.sent: deque[Sent | None] = deque()
        self.lost: list[Sent] = []
        self.answer: Fenced | None = None
        # When it may be tried again, how long a failure keeps it from that, and since when it has been up.
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
        """Write a word."""
        if not self.sent:
            self.last_alive_ns = 0
        self.sent.append(None)
        self.ends.data.write(local, remote, length, immediate=immediate, signaled=True)

    def move(self, source_port: int) -> None:
        """Take another path, with its probes; nothing may be in flight."""
        self.source_port = source_port
        if self.state is State.UP:
            self.ends.data.move(source_port)
            self.ends.probe.move(source_port)
            self.record.move(self.ends.data.source_port)

    def acknowledged(self, now_ns: int) -> Sent | None:
        """The oldest message in flight has reached the peer's memory; None where that was a word."""
        self.last_alive_ns = now_ns
        sent = self.sent.popleft()
        if sent is not None:
            self.record.acknowledge(sent.message.length, now_ns)
        return sent

    def lose(self) -> None:
        """The oldest message in flight may not have arrived."""
        sent = self.sent.popleft()
        if sent is not None:
            self.lost.append(sent)


class ReceivingRail(Rail):
    """The end that grants. `heeded`: the sender has said that it knows of the fence.

    Its `record` is known when its far end is.
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
        """Post a grant or a word."""
        if not self._grants:
            self.last_alive_ns = 0
        self._grants += 1
        self.ends.data.write(local, remote, length, immediate=immediate, signaled=True)

    def completed(self) -> None:
        """The oldest grant has arrived, or never will."""
        self._grants -= 1
        self.last_alive_ns = 0
