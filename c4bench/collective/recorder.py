"""The writing side of a rank's telemetry; see `ring_layout` for why it can be read at any moment."""

import mmap
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from c4bench.collective import ring_layout as layout
from c4bench.errors import UsageError
from c4bench.model.telemetry import CommRecord


class Owner(msgspec.Struct, frozen=True):
    """The process a file belongs to."""

    job: str
    rank: int
    pid: int


class CommEntry(msgspec.Struct, frozen=True):
    """A communicator and which of its ranks the process is."""

    rank: int
    record: CommRecord


class ConnName(msgspec.Struct, frozen=True):
    """The constant part of a connection's record. `comm` is the communicator's index in the file."""

    comm: int
    peer: int
    source: str
    destination: str
    qp: int


@dataclass(slots=True)
class OpWriter:
    """The running operation's record. Times are nanoseconds; `awaits` is a bit set of ranks."""

    slot: layout.Slot
    seq: int
    kind: str
    algorithm: str
    dtype: str
    size_bytes: int
    entered_ns: int
    started_ns: int = 0
    finished_ns: int = 0
    awaits: int = 0

    def store(self) -> None:
        """Publish the fields as they are."""
        self.slot.write(
            layout.OP.pack(
                self.seq,
                self.size_bytes,
                self.entered_ns,
                self.started_ns,
                self.finished_ns,
                self.kind.encode(),
                self.algorithm.encode(),
                self.dtype.encode(),
                self.awaits.to_bytes(layout.MAX_RANKS // 8, "little"),
            )
        )


@dataclass(slots=True)
class ConnWriter:
    """A connection's counters and the state it is in. Times are nanoseconds."""

    slot: layout.Slot
    source_port: int
    since_ns: int
    state: str = "idle"
    messages: int = 0
    size_bytes: int = 0
    spent_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(layout.STATES, 0))
    last_progress_ns: int = 0
    outstanding: int = 0
    owed: int = 0

    def enter(self, state: str, now_ns: int) -> None:
        """Book the time since the last change on the state that was, and go to `state`."""
        self.spent_ns[self.state] += now_ns - self.since_ns
        self.state = state
        self.since_ns = now_ns

    def store(self) -> None:
        """Publish the fields as they are."""
        spent = self.spent_ns
        self.slot.write(
            layout.CONN.pack(
                self.messages,
                self.size_bytes,
                spent["credit"],
                spent["data"],
                spent["transfer"],
                self.last_progress_ns,
                self.outstanding,
                self.owed,
                self.source_port,
                layout.STATES.index(self.state),
                self.since_ns,
            )
        )


class Recorder:
    """Creates the file of one rank's process and hands out records in it.

    One recorder serves all communicators of the process, each of which may be used from a thread of its own. The file
    appears under its name only when it is complete, so a reader never sees half a header. Raises UsageError when a
    fixed table is full.
    """

    def __init__(self, path: Path, job: str, rank: int) -> None:
        self.path = path
        self._map = _create(path)
        self._memory = memoryview(self._map)
        self._lock = threading.Lock()
        self._comms = 0
        self._conns = 0
        process = layout.Slot(self._memory, layout.HEADER_BYTES, layout.PROCESS_BYTES)
        process.write(msgspec.msgpack.encode(Owner(job, rank, os.getpid())))
        layout.HEADER.pack_into(self._memory, 0, layout.MAGIC, *layout.SIZES)
        path.with_name(f"{path.name}.new").rename(path)

    def communicator(self, record: CommRecord, rank: int) -> int:
        """Record a communicator in which this process is `rank`; returns its index."""
        with self._lock:
            index = self._take("communicators", self._comms, layout.COMMS)
            self._comms += 1
        slot = layout.Slot(self._memory, layout.COMMS_AT + index * 2 * layout.COMM_BYTES, layout.COMM_BYTES)
        slot.write(msgspec.msgpack.encode(CommEntry(rank, record)))
        return index

    def connection(self, name: ConnName, source_port: int, now_ns: int) -> ConnWriter:
        """Record a connection; returns the writer of its counters."""
        with self._lock:
            index = self._take("connections", self._conns, layout.CONNS)
            self._conns += 1
        at = layout.CONNS_AT + index * 2 * layout.CONN_BYTES
        writer = ConnWriter(layout.Slot(self._memory, at, layout.CONN_BYTES), source_port, now_ns)
        writer.store()
        at = layout.CONN_NAMES_AT + index * 2 * layout.CONN_NAME_BYTES
        layout.Slot(self._memory, at, layout.CONN_NAME_BYTES).write(msgspec.msgpack.encode(name))
        return writer

    def operations(self, comm: int) -> list[layout.Slot]:
        """The slots of a communicator's operation ring; operation `seq` belongs in slot `seq % len`."""
        base = layout.OPS_AT + comm * layout.OPS_PER_COMM * 2 * layout.OP_BYTES
        return [
            layout.Slot(self._memory, base + index * 2 * layout.OP_BYTES, layout.OP_BYTES)
            for index in range(layout.OPS_PER_COMM)
        ]

    def _take(self, what: str, used: int, limit: int) -> int:
        if used >= limit:
            raise UsageError(
                f"{self.path}: a process records at most {limit} {what}; close some or use another recorder"
            )
        return used

    def close(self) -> None:
        """Unmap the file, which stays for its readers."""
        self._memory.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _create(path: Path) -> mmap.mmap:
    with path.with_name(f"{path.name}.new").open("wb+") as file:
        file.truncate(layout.FILE_BYTES)
        return mmap.mmap(file.fileno(), layout.FILE_BYTES)
