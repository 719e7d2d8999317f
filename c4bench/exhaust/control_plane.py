"""What the ranks of a trial have in place of agents and a master: one process that exchanges their messages.

It notifies nobody of a rank that dies: what the others then learn, they learn from the network.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

import msgspec

from c4bench.collective.rendezvous import EVERYBODY, AbsentError, EcmpPaths, FailedError
from c4bench.exhaust.outcome import RankEnd
from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.telemetry import Failure

_LENGTH = struct.Struct("!I")


class Exchange(msgspec.Struct, frozen=True, tag=True):
    """Answered with the payloads of all ranks, or with a Failure."""

    comm: str
    key: str
    rank: int
    size: int
    payload: bytes


class Missing(msgspec.Struct, frozen=True, tag=True):
    """Give up on an exchange; answered with the ranks that have not joined."""

    comm: str
    key: str
    size: int


class Fail(msgspec.Struct, frozen=True, tag=True):
    """The first failure of a communicator goes to all who watch it."""

    comm: str
    failure: Failure


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Answered with Known, and with the Failure once there is one."""

    comm: str


class Join(msgspec.Struct, frozen=True, tag=True):
    """Messages to this rank of a communicator come by this connection from now on; answered with Known."""

    comm: str
    rank: int


class Pass(msgspec.Struct, frozen=True, tag=True):
    """A message from a rank to another one, or to everybody."""

    comm: str
    rank: int
    to: int
    body: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A rank has ended; answered with Known."""

    rank: int
    end: RankEnd


Message = Exchange | Missing | Fail | Watch | Join | Pass | Ended
_decode = msgspec.msgpack.Decoder(Message).decode
_encode = msgspec.msgpack.Encoder().encode


class Exchanged(msgspec.Struct, frozen=True, tag=True):
    """What all ranks have given, by rank."""

    payloads: list[bytes]


class Absent(msgspec.Struct, frozen=True, tag=True):
    """Ranks that have not joined an exchange."""

    ranks: list[int]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A communicator's first failure."""

    failure: Failure


class Known(msgspec.Struct, frozen=True, tag=True):
    """The hub has acted on what this rank said."""


_decode_answer = msgspec.msgpack.Decoder(Exchanged | Absent | Failed).decode


class _Link:
    """A connection whose messages have their length before them."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)

    def send(self, message: Message) -> None:
        _send(self.socket, _encode(message))

    def notify(self, message: Message) -> None:
        """Send, and return when the hub has acted on it: what others say afterwards comes after it."""
        self.send(message)
        self.receive()

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next message. Raises TimeoutError, and EOFError where the other side is gone."""
        self.socket.settimeout(timeout_s)
        body = _receive(self.socket)
        self.socket.settimeout(None)
        return body

    def close(self) -> None:
        self.socket.close()


def _send(to: socket.socket, body: bytes) -> None:
    to.sendall(_LENGTH.pack(len(body)) + body)


def _receive(source: socket.socket) -> bytes:
    head = _exactly(source, _LENGTH.size)
    return _exactly(source, _LENGTH.unpack(head)[0])


def _exactly(source: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = source.recv(size - len(body))
        if not part:
            raise EOFError("the other end has closed")
        body += part
    return body


class Hub:
    """The side of all ranks of one trial; `ended` is called with each rank that says how it ended."""

    def __init__(self, path: Path, selector: BaseSelector, ended: Callable[[int, RankEnd], None]) -> None:
        self._selector, self._ended = selector, ended
        self._payloads: dict[tuple[str, str], dict[int, bytes]] = {}
        self._waiting: dict[tuple[str, str], dict[int, socket.socket]] = {}
        self._failures: dict[str, Failure] = {}
        self._watching: dict[str, list[socket.socket]] = {}
        self._joined: dict[str, dict[int, socket.socket]] = {}
        self._connections: set[socket.socket] = set()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(256)
        selector.register(self._listener, EVENT_READ, self._accept)

    def close(self) -> None:
        """Close all connections."""
        self._selector.unregister(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            self._drop(connection)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._connections.add(connection)
        self._selector.register(connection, EVENT_READ, lambda: self._serve(connection))

    def _drop(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection)
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            message = _decode(_receive(connection))
        except (EOFError, OSError):
            self._drop(connection)
            return
        match message:
            case Exchange():
                self._exchange(connection, message)
            case Missing(comm, key, size):
                joined = self._payloads.get((comm, key), {})
                self._answer(connection, Absent(sorted(set(range(size)) - joined.keys())))
            case Fail(comm, failure):
                self._fail(comm, failure)
            case Watch(comm):
                self._watching.setdefault(comm, []).append(connection)
                self._answer(connection, Known())
                if comm in self._failures:
                    self._answer(connection, Failed(self._failures[comm]))
            case Join(comm, rank):
                self._joined.setdefault(comm, {})[rank] = connection
                self._answer(connection, Known())
            case Pass(comm, rank, to, body):
                for other, inbox in self._joined.get(comm, {}).items():
                    if other != rank and to in (other, EVERYBODY):
                        self._answer(inbox, body)
            case Ended(rank, end):
                self._ended(rank, end)
                self._answer(connection, Known())

    def _exchange(self, connection: socket.socket, message: Exchange) -> None:
        name = (message.comm, message.key)
        payloads = self._payloads.setdefault(name, {})
        payloads[message.rank] = message.payload
        waiting = self._waiting.setdefault(name, {})
        waiting[message.rank] = connection
        if len(payloads) == message.size:
            answer = Exchanged([payloads[rank] for rank in range(message.size)])
            for each in self._waiting.pop(name).values():
                self._answer(each, answer)
        elif message.comm in self._failures:
            self._answer(waiting.pop(message.rank), Failed(self._failures[message.comm]))

    def _fail(self, comm: str, failure: Failure) -> None:
        if comm in self._failures:
            return
        self._failures[comm] = failure
        waiting = [ranks for (other, _), ranks in self._waiting.items() if other == comm]
        for connection in [each for ranks in waiting for each in ranks.values()] + self._watching.get(comm, []):
            self._answer(connection, Failed(failure))
        for ranks in waiting:
            ranks.clear()

    @staticmethod
    def _answer(connection: socket.socket, answer: object) -> None:
        with suppress(OSError):
            _send(connection, _encode(answer))


class _Signal:
    """See `collective.rendezvous.FailureSignal`."""

    def __init__(self, path: str, comm: str) -> None:
        self._link = _Link(path)
        self._link.notify(Watch(comm))

    @property
    def fd(self) -> int:
        return self._link.socket.fileno()

    def failure(self) -> Failure | None:
        try:
            answer = _decode_answer(self._link.receive())
        except (EOFError, OSError):
            return None
        return answer.failure if isinstance(answer, Failed) else None

    def close(self) -> None:
        self._link.close()


class _Relay:
    """See `collective.rendezvous.RelayChannel`."""

    def __init__(self, path: str, comm: str, rank: int) -> None:
        self._link = _Link(path)
        self._comm, self._rank = comm, rank
        self._link.notify(Join(comm, rank))

    @property
    def fd(self) -> int:
        return self._link.socket.fileno()

    def send(self, to: int, body: bytes) -> None:
        with suppress(OSError):
            self._link.send(Pass(self._comm, self._rank, to, body))

    def lost(self, loss: NetworkLoss) -> None:
        """Nobody looks for faults here."""

    def poll(self) -> list[bytes] | None:
        try:
            return [msgspec.msgpack.decode(self._link.receive(), type=bytes)]
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self._link.close()


class TrialRendezvous(EcmpPaths):
    """A rank's side: see `collective.rendezvous.Rendezvous`. Paths are left to the fabric, which has one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._link = _Link(path)

    def close(self) -> None:
        """Close the connection; those of signals and relays stay."""
        self._link.close()

    def ended(self, rank: int, end: RankEnd) -> None:
        """Say how this rank ends, and wait until that is known."""
        self._link.notify(Ended(rank, end))

    def exchange(self, comm: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather; raises as the protocol says."""
        self._link.send(Exchange(comm, key, rank, size, payload))
        try:
            body = self._link.receive(timeout_s)
        except TimeoutError:
            self._link.send(Missing(comm, key, size))
            body = self._link.receive()
            if isinstance(answer := _decode_answer(body), Absent):
                raise AbsentError(answer.ranks, timeout_s) from None
            self._link.receive()  # the last one has just joined: the answer to the exchange came first
        answer = _decode_answer(body)
        if isinstance(answer, Failed):
            raise FailedError(answer.failure)
        assert isinstance(answer, Exchanged)
        return answer.payloads

    def enter(self, comm: str, seats: Sequence[int]) -> None:
        """Nothing to say: a name is enough within one trial."""

    def leave(self, comm: str) -> None:
        """Nothing to say."""

    def fail(self, comm: str, failure: Failure, sender: int) -> None:  # noqa: ARG002
        """Notify every member."""
        self._link.send(Fail(comm, failure))

    def failure_signal(self, comm: str) -> _Signal:
        """Subscribe to failures."""
        return _Signal(self._path, comm)

    def relay(self, comm: str, rank: int) -> _Relay:
        """A relay channel to the other ranks."""
        return _Relay(self._path, comm, rank)
