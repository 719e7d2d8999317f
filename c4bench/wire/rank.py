"""A rank's blocking connection to its agent, which relays to the master."""

import itertools
import socket
import threading
from typing import Any, TypeVar

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.wire.framing import LENGTH_BYTES, frame
from c4bench.wire.messages import Answer, Call, Note
from c4bench.wire.requests import request_of

Body = TypeVar("Body")


class RankLink:
    """One connection to the agent's socket at `path`, for requests of ranks as `wire/requests.py` lists them."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._numbers = itertools.count(1)
        self._calling = threading.Lock()

    def call(self, body: object) -> Any:  # noqa: ANN401  (each request has its own)
        """Send a request, and wait for its answer. UnhealthyError if it is refused, or agent or master is gone.

        Threads of a rank may call at once; each has its own answer.
        """
        with self._calling:
            self.ask(body)
            return self.answer(request_of(body).answer)

    def ask(self, body: object) -> None:
        """Send a request; `fileno` becomes readable when the answer arrives or the connection closes."""
        call = Call(next(self._numbers), request_of(body).name, msgspec.Raw(msgspec.msgpack.encode(body)))
        self._socket.sendall(frame(msgspec.msgpack.encode(call)))

    def note(self, body: object) -> None:
        """Send a request that is not answered."""
        message = Note(request_of(body).name, msgspec.Raw(msgspec.msgpack.encode(body)))
        self._socket.sendall(frame(msgspec.msgpack.encode(message)))

    def answer(self, answer: type[Body]) -> Body:
        """Wait for the answer to the last request."""
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
