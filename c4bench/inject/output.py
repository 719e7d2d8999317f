"""What the injector says to its caller: nobody who leaves a pipe unread can make it wait.

The caller chooses what is behind stdout and stderr: a pipe that is full, a terminal that has been stopped, a file of a
file system of its own. So a thread writes, and whatever the injector says only joins a queue, also under the journal's
lock.
"""

import io
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# More than what the journal of a host with many faults gives.
_MOST_WAITING = 10_000
# At the end of the command: for a reader on the other side of the world.
_PATIENCE_S = 5.0
_POLL_S = 0.01


class Output(io.TextIOBase):
    """A stream of text that goes to a `descriptor` of the caller's.

    `write` never waits: when 10,000 pieces wait for a reader, more are dropped. A forked process writes nothing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._home = os.getpid()

    def write(self, text: str) -> int:
        """Have it written; returns its length."""
        if text and os.getpid() == self._home and self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(text.encode(errors="backslashreplace"))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="c4bench-output", daemon=True)
                self._thread.start()
        return len(text)

    def fileno(self) -> int:
        """The caller's descriptor."""
        return self._descriptor

    def finish(self, until_s: float) -> None:
        """Wait until everything is written, at most until then (monotonic)."""
        if self._thread is not None:
            self._waiting.put(b"")
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while piece := self._waiting.get():
            try:
                self._write_all(piece)
            except OSError:  # the reader has gone
                return

    def _write_all(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[os.write(self._descriptor, piece) :]
            except BlockingIOError:  # the caller has made it non-blocking
                time.sleep(_POLL_S)


@contextmanager
def of_caller() -> Iterator[None]:
    """Within the block, stdout and stderr are of this kind: of answers, log lines and tracebacks alike."""
    streams = out, err = Output(1), Output(2)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        until_s = time.monotonic() + _PATIENCE_S
        for stream in streams:
            stream.finish(until_s)
