"""A rank's blocking connection to its agent, which relays to the master."""

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
        """Send a call and wait for the answer. Raises UnhealthyError if it is refused or the agent or master is gone.

        Threads of a rank may call at once; each has its own answer.
        """
        with self._calling:
            self.ask(method, body)
            return self.answer(answer)

    def ask(self, method: str, body: object) -> None:
        """Send a call; `fileno` becomes readable when the answer arrives or the connection closes."""
        call = Call(next(self._numbers), method, msgspec.Raw(msgspec.msgpack.encode(body)))
        self._socket.sendall(frame(msgspec.msgpack.encode(call)))

    def note(self, method: str, body: object) -> None:
        """Send a note."""
        message = Note(method, msgspec.Raw(msgspec.msgpack.encode(body)))
        self._socket.sendall(frame(msgspec.msgpack.encode(message)))

    def answer(self, answer: type[Body]) -> Body:
        """Wait for the answer to the last call."""
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
        """Close the connection."""
        self._socket.close()
