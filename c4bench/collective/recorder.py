"""Write a rank's telemetry file; `ring_layout` explains why it can be read at any time."""

import mmap
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from c4bench.collective import ring_layout as layout
from c4bench.collective.ring_layout import CommEntry, ConnName, LatencySums, Owner
from c4bench.errors import UsageError
from c4bench.model.telemetry import CommRecord
from c4bench.model.window import STATES


@dataclass(slots=True)
class NicClock:
    """A NIC's virtual time, shared equally among the connections that transfer at once. All times are in ns.

    Transfers that run together slow each other down although the NIC is no slower. So every moment is divided equally
    among the connections in transfer: the virtual time of processor sharing (Parekh and Gallager, "A generalized
    processor sharing approach to flow control", 1993). A connection's shares sum to the time that its transfers would
    have taken alone, and all connections' shares to the time that the NIC was busy.
    """

    _carried: int = 0
    _share_ns: float = 0.0
    _since_ns: int = 0

    def reads(self, now_ns: int) -> float:
        """The clock: a connection in transfer between two readings gets their difference. `now_ns` never decreases."""
        if self._carried:
            self._share_ns += (now_ns - self._since_ns) / self._carried
        self._since_ns = now_ns
        return self._share_ns

    def carry(self, more: int, now_ns: int) -> None:
        """Add `more` connections in transfer from now on; negative to remove some."""
        self.reads(now_ns)
        self._carried += more


RELEASED = b""  # the value of a slot whose communicator is closed


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

    def awaiting(self, peer: int, *, still: bool) -> None:
        """Data from `peer` is still missing, or complete."""
        self.awaits = self.awaits | 1 << peer if still else self.awaits & ~(1 << peer)

    def start(self, now_ns: int) -> None:
        """The first byte has moved; only the first call counts."""
        if not self.started_ns:
            self.started_ns = now_ns
            self.store()

    def finish(self, now_ns: int) -> None:
        """The operation has ended."""
        self.finished_ns = now_ns
        self.store()

    def store(self) -> None:
        """Publish the current values."""
        payload = layout.OP.pack(
            self.seq,
            self.size_bytes,
            self.entered_ns,
            self.started_ns,
            self.finished_ns,
            layout.names(self.kind, self.algorithm, self.dtype),
        )
        if self.awaits:
            payload += self.awaits.to_bytes((self.awaits.bit_length() + 7) // 8, "little")
        self.slot.write(payload)


@dataclass(slots=True)
class ConnWriter:
    """A QP's counters and state. Times are in ns; `read_ns` is a reading of its NIC's virtual clock."""

    slot: layout.Slot
    source_port: int
    since_ns: int
    clock: NicClock
    state: str = "idle"
    messages: int = 0
    size_bytes: int = 0
    spent_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    shared_ns: float = 0.0
    read_ns: float = 0.0
    last_progress_ns: int = 0
    outstanding: int = 0
    owed: int = 0
    posted: LatencySums = field(default_factory=LatencySums)

    def post(self, now_ns: int) -> None:
        """A message has been posted."""
        self.posted.add(now_ns)

    def acknowledge(self, size_bytes: int, now_ns: int) -> None:
        """A message is acknowledged."""
        self.messages += 1
        self.size_bytes += size_bytes
        self.last_progress_ns = now_ns

    def set_state(self, state: str, outstanding: int, owed: int, now_ns: int) -> None:
        """Enter a state; the time since the last change is added to the previous state. Publishes any change."""
        # Every message posted or acknowledged changes one of these.
        if owed == self.owed and outstanding == self.outstanding and state == self.state:
            return
        self._share(state, now_ns)
        if state != self.state:
            self.spent_ns[self.state] += now_ns - self.since_ns
            self.state = state
            self.since_ns = now_ns
        self.outstanding = outstanding
        self.owed = owed
        self.store()

    def _share(self, state: str, now_ns: int) -> None:
        reads_ns = self.clock.reads(now_ns)
        if self.state == "transfer":
            self.shared_ns += reads_ns - self.read_ns
        self.read_ns = reads_ns
        if state != self.state:
            self.clock.carry((state == "transfer") - (self.state == "transfer"), now_ns)

    def move(self, source_port: int) -> None:
        """The QP has moved to another path."""
        self.source_port = source_port
        self.store()

    def store(self) -> None:
        """Publish the current values."""
        spent = self.spent_ns
        self.slot.write(
            layout.CONN.pack(
                self.messages,
                self.size_bytes,
                spent["credit"],
                spent["data"],
                spent["transfer"],
                round(self.shared_ns),
                self.last_progress_ns,
                self.outstanding,
                self.owed,
                self.source_port,
                layout.STATE_NUMBERS[self.state],
                self.since_ns,
                self.posted.count,
                *self.posted.sums,
            )
        )


@dataclass(slots=True)
class ArrivalWriter:
    """Counts the messages that arrive on a QP, and sums their arrival times."""

    slot: layout.Slot
    tally: LatencySums = field(default_factory=LatencySums)

    def arrived(self, now_ns: int) -> None:
        """Count one message."""
        self.tally.add(now_ns)

    def store(self) -> None:
        """Publish the tally."""
        self.slot.write(layout.TALLY.pack(self.tally.count, *self.tally.sums))


class _SlotTable:
    """Allocates the slots of a table of fixed size."""

    def __init__(self, what: str, limit: int) -> None:
        self._what, self._limit = what, limit
        self._used = 0
        self._free: list[int] = []

    def allocate(self, path: Path) -> int:
        """The index of a free slot. Raises UsageError when there is none."""
        if self._free:
            return self._free.pop()
        if self._used == self._limit:
            raise UsageError(
                f"{path}: a process records at most {self._limit} {self._what}; close some or use another recorder"
            )
        self._used += 1
        return self._used - 1

    def free(self, indices: list[int]) -> None:
        """Make slots available again."""
        self._free += indices


class Recorder:
    """Creates the telemetry file of one rank's process and allocates records in it.

    One recorder serves all communicators of the process, each of which may run in its own thread. The file gets its
    name only when it is complete, so a reader never sees a partial header. Raises UsageError when a table is full.
    """

    def __init__(self, path: Path, job: str, rank: int) -> None:
        self.path = path
        self._map = _create(path)
        self._memory = memoryview(self._map)
        self._lock = threading.Lock()
        self._comms = _SlotTable("communicators", layout.COMMS)
        self._conns = _SlotTable("connections", layout.CONNS)
        self._arrivals = _SlotTable("incoming connections", layout.CONNS)
        self._allocated: dict[tuple[_SlotTable, int], list[int]] = {}
        self._op_slots: dict[int, list[layout.Slot]] = {}
        # Each communicator has its own clocks, since another one may run in another thread.
        self._clocks: dict[tuple[int, str], NicClock] = {}
        process = layout.Slot(self._memory, layout.HEADER_BYTES, layout.PROCESS_BYTES)
        process.write(msgspec.msgpack.encode(Owner(job, rank, os.getpid())))
        layout.HEADER.pack_into(self._memory, 0, layout.MAGIC, *layout.SIZES)
        path.with_name(f"{path.name}.new").rename(path)

    def communicator(self, record: CommRecord, rank: int) -> int:
        """Record a communicator in which this process is `rank`; returns its index."""
        with self._lock:
            index = self._comms.allocate(self.path)
            self._op_slots[index] = self._operations(index)
        self._comm_slot(index).write(msgspec.msgpack.encode(CommEntry(rank, record)))
        return index

    def release(self, comm: int) -> None:
        """Release the records of a closed communicator, its operations and its connections, for reuse."""
        self._comm_slot(comm).write(RELEASED)
        for slot in self._op_slots[comm]:
            slot.write(RELEASED)
        with self._lock:
            for table, base in ((self._conns, layout.CONN_NAMES_AT), (self._arrivals, layout.ARRIVAL_NAMES_AT)):
                indices = self._allocated.pop((table, comm), [])
                for index in indices:
                    self._slot(base, index, layout.CONN_NAME_BYTES).write(RELEASED)
                table.free(indices)
            self._clocks = {key: clock for key, clock in self._clocks.items() if key[0] != comm}
            self._comms.free([comm])

    def _allocate(self, table: _SlotTable, comm: int) -> int:
        index = table.allocate(self.path)
        self._allocated.setdefault((table, comm), []).append(index)
        return index

    def connection(self, name: ConnName, source_port: int, now_ns: int) -> ConnWriter:
        """Record the sending end of a QP; returns a writer for its counters."""
        with self._lock:
            index = self._allocate(self._conns, name.comm)
            clock = self._clocks.setdefault((name.comm, name.source), NicClock())
        writer = ConnWriter(self._slot(layout.CONNS_AT, index, layout.CONN_BYTES), source_port, now_ns, clock)
        writer.store()
        self._slot(layout.CONN_NAMES_AT, index, layout.CONN_NAME_BYTES).write(msgspec.msgpack.encode(name))
        return writer

    def arrivals(self, name: ConnName) -> ArrivalWriter:
        """Record the receiving end of a QP; returns a writer for its counters."""
        with self._lock:
            index = self._allocate(self._arrivals, name.comm)
        writer = ArrivalWriter(self._slot(layout.ARRIVALS_AT, index, layout.ARRIVAL_BYTES))
        writer.store()
        self._slot(layout.ARRIVAL_NAMES_AT, index, layout.CONN_NAME_BYTES).write(msgspec.msgpack.encode(name))
        return writer

    def operation(
        self, comm: int, seq: int, kind: str, algorithm: str, dtype: str, size_bytes: int, now_ns: int
    ) -> OpWriter:
        """Record operation `seq` of a communicator, entered now; it overwrites the oldest operation."""
        slots = self._op_slots[comm]
        return OpWriter(slots[seq % len(slots)], seq, kind, algorithm, dtype, size_bytes, now_ns)

    def _operations(self, comm: int) -> list[layout.Slot]:
        base = layout.operations_at(comm)
        return [self._slot(base, index, layout.OP_BYTES) for index in range(layout.OPS_PER_COMM)]

    def _comm_slot(self, index: int) -> layout.Slot:
        return self._slot(layout.COMMS_AT, index, layout.COMM_BYTES)

    def _slot(self, base: int, index: int, size: int) -> layout.Slot:
        return layout.Slot(self._memory, base + index * 2 * size, size)

    def close(self) -> None:
        """Unmap the file; it is not deleted."""
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


_NOWHERE = layout.Slot(memoryview(bytearray(2 * layout.OP_BYTES)), 0, layout.OP_BYTES)


def _nothing(*_args: object, **_named: object) -> None:
    """Write nothing."""


class _NullOp(OpWriter):
    __slots__ = ()
    awaiting = start = finish = store = _nothing


class _NullConn(ConnWriter):
    __slots__ = ()
    post = acknowledge = move = set_state = _nothing


class _NullArrivals(ArrivalWriter):
    __slots__ = ()
    arrived = store = _nothing


class NullRecorder:
    """A Recorder that records nothing, to measure what recording costs."""

    def communicator(self, record: CommRecord, rank: int) -> int:  # noqa: ARG002  (a recorder's signature)
        """Record nothing."""
        return 0

    def release(self, comm: int) -> None:
        """Release nothing."""

    def operation(self, comm: int, *fields: Any) -> OpWriter:  # noqa: ANN401, ARG002  (those of an OpWriter)
        """A writer that writes nothing."""
        return _NullOp(_NOWHERE, *fields)

    def connection(self, name: ConnName, source_port: int, now_ns: int) -> ConnWriter:  # noqa: ARG002
        """A writer that writes nothing."""
        return _NullConn(_NOWHERE, source_port, now_ns, NicClock())

    def arrivals(self, name: ConnName) -> ArrivalWriter:  # noqa: ARG002
        """A writer that writes nothing."""
        return _NullArrivals(_NOWHERE)
