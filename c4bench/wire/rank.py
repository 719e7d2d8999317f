"""A rank's line to its agent, and through it to the master: blocking, since a rank has nothing else to do meanwhile."""

import itertools
import socket
import threading
from typing import TypeVar

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.wire.framing import LENGTH_BYTES, frame
from c4bench.wire.messages import Answer, Call, Note

Body = TypeVar("Body")


class RankLink:
    """One connection to the agent's socket at `path`."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._numbers = itertools.count(1)
        self._calling = threading.Lock()

    def call(self, method: str, body: object, answer: type[Body]) -> Body:
        """Ask and wait. Raises UnhealthyError when it is refused, or when the agent or the master is gone.

        Threads of a rank may call at once; each has its own answer.
        """
        with self._calling:
            self.ask(method, body)
            return self.answer(answer)

    def ask(self, method: str, body: object) -> None:
        """Ask; `fileno` becomes readable when the answer comes, or when none will."""
        call = Call(next(self._numbers), method, msgspec.Raw(msgspec.msgpack.encode(body)))
        self._socket.sendall(frame(msgspec.msgpack.encode(call)))

    def note(self, method: str, body: object) -> None:
        """Tell, with no answer wanted."""
        message = Note(method, msgspec.Raw(msgspec.msgpack.encode(body)))
        self._socket.sendall(frame(msgspec.msgpack.encode(message)))

    def answer(self, answer: type[Body]) -> Body:
        """Wait for the answer to what was asked."""
        answered = msgspec.msgpack.decode(self._receive(), type=Answer)
        if answered.error:
            raise UnhealthyError(answered.error)
        return msgspec.msgpack.decode(answered.body, type=answer)

    def fileno(self) -> int:
        """The connection's descriptor."""
        return self._socket.fileno()

    def _receive(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(LENGTH_BYTES)))

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._socket.recv(length - len(parts))
            if not part:
                raise UnhealthyError("the agent closed the connection")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
