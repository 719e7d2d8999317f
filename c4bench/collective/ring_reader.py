"""Read a rank's telemetry file. The writer need not cooperate or be alive."""

import math
import mmap
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec

from c4bench.collective import ring_layout as layout
from c4bench.collective.latency_sums import STRIDES, LatencyMark, roundest
from c4bench.collective.ring_entries import CommEntry, ConnName, Owner
from c4bench.collective.table_reader import TableReader, Value, record
from c4bench.errors import UsageError
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord

_CREDIT, _DATA = layout.STATES.index("credit"), layout.STATES.index("data")
_COUNTED = -1 - len(STRIDES)  # where a tally begins
_NEVER_READ = 0, LatencyMark(0, 0)


class TelemetrySnapshot(NamedTuple):
    """The records of a file."""

    comms: tuple[CommRecord, ...]
    ops: tuple[OpRecord, ...]
    conns: tuple[ConnRecord, ...]
    arrivals: tuple[ArrivalRecord, ...]


class _Identity(NamedTuple):
    """The fields that identify a connection; records of both ends begin with them."""

    comm: str
    rank: int
    peer: int
    source: str
    destination: str
    qp: int


def read_telemetry_file(path: Path, now_s: float | None = None) -> TelemetrySnapshot:
    """Read the file at `path` once; see `TelemetryReader`."""
    return TelemetryReader(path).read(now_s)


class TelemetryReader:
    """Reads the file at `path` repeatedly, and decodes only the records that have changed.

    Raises UsageError for a file that is truncated or not a telemetry file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory = _load(path)
        self._comms = self._table(layout.COMMS_AT, layout.COMM_BYTES, layout.COMMS, _comm)
        self._entries: dict[int, CommEntry] = {}
        self._operations: dict[int, _Operations] = {}
        self._sending = self._ends(layout.CONN_NAMES_AT, layout.CONNS_AT, layout.CONN_BYTES, layout.CONN)
        self._receiving = self._ends(layout.ARRIVAL_NAMES_AT, layout.ARRIVALS_AT, layout.ARRIVAL_BYTES, layout.TALLY)

    def read(self, now_s: float | None = None, since_s: float = 0.0) -> TelemetrySnapshot:
        """All records; operations by communicator and sequence number, without those finished before `since_s`.

        With `now_s`, on the recording host's clock, a connection's time in its current state is added to that state's
        counter, so that an ongoing wait is visible. Raises UsageError for a damaged file.
        """
        changed = bool(self._comms.read())
        if changed:
            self._follow({index: entry for index, entry in enumerate(self._comms.values) if entry is not None})
        ops = [op for operations in self._operations.values() for op in operations.read(since_s)]
        ops.sort(key=_op_order)
        now_ns = None if now_s is None else round(now_s * 1e9)
        return TelemetrySnapshot(
            tuple(entry.record for entry in self._entries.values()),
            tuple(ops),
            tuple(_conn(*end, now_ns) for end in self._sending.read(self._entries, changed=changed)),
            tuple(_arrival(*end) for end in self._receiving.read(self._entries, changed=changed)),
        )

    def _follow(self, entries: dict[int, CommEntry]) -> None:
        """Read the operations of these communicators from now on, and forget those of others."""
        self._operations = {
            index: self._operations[index] if self._entries.get(index) is entry else self._ops(index, entry)
            for index, entry in entries.items()
        }
        self._entries = entries

    def _ops(self, comm: int, entry: CommEntry) -> "_Operations":
        # An operation's slot follows from its number, so the first one may be anywhere in the table.
        places = layout.OPS_PER_COMM
        base, decode = layout.operations_at(comm), partial(_op, entry.record.comm, entry.rank)
        return _Operations(TableReader(self._memory, self._path, base, layout.OP_BYTES, places, decode, places))

    def _ends(self, names_at: int, values_at: int, size: int, numbers: Struct) -> "_Ends":
        names = self._table(names_at, layout.CONN_NAME_BYTES, layout.CONNS, _name)
        return _Ends(names, self._table(values_at, size, layout.CONNS, numbers.unpack))

    def _table(self, base: int, size: int, places: int, decode: Callable[[bytes], Value]) -> TableReader[Value]:
        return TableReader(self._memory, self._path, base, size, places, decode)


class _Operations:
    """A communicator's operations. Only those that are new or still running are examined."""

    def __init__(self, table: TableReader[OpRecord]) -> None:
        self._table = table
        self._recent: dict[int, OpRecord] = {}
        self._since_s = math.inf

    def read(self, since_s: float) -> Collection[OpRecord]:
        """All operations but those finished before `since_s`."""
        written = self._table.read()
        values = self._table.values
        # When the clock is set back, old operations become recent again.
        places = written if since_s >= self._since_s else range(len(values))
        self._since_s = since_s
        raw_owner = self._recent | {place: values[place] for place in places}
        self._recent = {
            place: op for place, op in raw_owner.items() if op and (not op.finished_s or op.finished_s >= since_s)
        }
        return self._recent.values()


class _Ends:
    """The sending or the receiving ends of connections: a table of names, and one of numbers that end in a tally."""

    def __init__(self, names: TableReader[ConnName], numbers: TableReader[tuple[int, ...]]) -> None:
        self._names, self._numbers = names, numbers
        self._identity: list[_Identity | None] = []
        self._previous: dict[int, tuple[int, LatencyMark]] = {}

    def read(
        self, comms: Mapping[int, CommEntry], *, changed: bool
    ) -> Iterator[tuple[_Identity, tuple[int, ...], LatencyMark]]:
        """The ends that belong to these communicators; `changed` if the set may differ from the last reading's."""
        if self._names.read() or changed:
            self._identity = [_identity(name, comms) for name in self._names.values]
        self._numbers.read()
        for place, (identity, numbers) in enumerate(zip(self._identity, self._numbers.values, strict=False)):
            if identity is not None and numbers is not None:
                yield identity, numbers, self._mark(place, numbers)

    def _mark(self, place: int, numbers: tuple[int, ...]) -> LatencyMark:
        """The roundest count since the last reading."""
        counted = numbers[_COUNTED]
        before, mark = self._previous.get(place, _NEVER_READ)
        if counted != before:
            # A slot that was released and reused counts from 0 again.
            mark = roundest(before if counted > before else 0, counted, numbers[_COUNTED + 1 :])
            self._previous[place] = (counted, mark)
        return mark


def read_owner(path: Path, descriptor: int) -> Owner:
    """The process that writes the file at `path`, open as `descriptor`. Raises as `read_telemetry_file` does."""
    raw_owner = record(_map(path, descriptor), path, layout.HEADER_BYTES, layout.PROCESS_BYTES)
    if raw_owner is None:
        raise UsageError(f"{path} has no owner record; it was not written by a c4bench recorder")
    return msgspec.msgpack.decode(raw_owner, type=Owner)


def _load(path: Path) -> mmap.mmap:
    try:
        # Ranks own these files, and root reads them: a link is not followed, and a FIFO not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as telemetry: {error}") from error
    try:
        return _map(path, descriptor)
    finally:
        os.close(descriptor)


def _map(path: Path, descriptor: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as telemetry: {error}") from error
    if len(memory) != layout.FILE_BYTES:
        raise UsageError(f"{path} has {len(memory)} bytes and a telemetry file has {layout.FILE_BYTES}; it is damaged")
    if layout.HEADER.unpack_from(memory) != (layout.MAGIC, *layout.SIZES):
        raise UsageError(f"{path} is not a telemetry file of this version; read it with the c4bench that wrote it")
    return memory


def _comm(raw: bytes) -> CommEntry:
    return msgspec.msgpack.decode(raw, type=CommEntry)


def _name(raw: bytes) -> ConnName:
    return msgspec.msgpack.decode(raw, type=ConnName)


def _identity(name: ConnName | None, comms: Mapping[int, CommEntry]) -> _Identity | None:
    if name is None or name.comm not in comms:
        return None
    entry = comms[name.comm]
    return _Identity(entry.record.comm, entry.rank, name.peer, name.source, name.destination, name.qp)


def _op_order(op: OpRecord) -> tuple[str, int]:
    return op.comm, op.seq


# Built by position because that is faster than by name, and a window may have thousands of records.
def _op(comm: str, rank: int, raw: bytes) -> OpRecord:
    seq, size_bytes, entered, started, finished, names = layout.OP.unpack_from(raw)
    kind, algorithm, dtype = layout.names_in(names)
    awaits = _ranks(raw[layout.OP.size :]) if len(raw) > layout.OP.size else ()
    return OpRecord(
        comm, rank, seq, kind, algorithm, dtype, size_bytes, entered / 1e9, started / 1e9, finished / 1e9, awaits
    )


def _conn(identity: _Identity, numbers: tuple[int, ...], mark: LatencyMark, now_ns: int | None) -> ConnRecord:
    comm, rank, peer, source, destination, qp = identity
    messages, size_bytes, credit, data, transfer, shared, progress, outstanding, owed, port, state, since = numbers[
        :_COUNTED
    ]
    if state and now_ns is not None and now_ns > since:
        lasting = now_ns - since
        if state == _CREDIT:
            credit += lasting
        elif state == _DATA:
            data += lasting
        else:
            transfer += lasting
    return ConnRecord(
        comm,
        rank,
        peer,
        source,
        destination,
        qp,
        port,
        messages,
        size_bytes,
        credit / 1e9,
        data / 1e9,
        transfer / 1e9,
        shared / 1e9,
        progress / 1e9,
        outstanding,
        owed,
        layout.STATES[state],
        since / 1e9,
        mark.messages,
        mark.sum_ns,
    )


def _arrival(identity: _Identity, numbers: tuple[int, ...], mark: LatencyMark) -> ArrivalRecord:
    return ArrivalRecord(*identity, numbers[_COUNTED], *mark)


def _ranks(bits: bytes) -> tuple[int, ...]:
    return tuple(rank for rank in range(8 * len(bits)) if bits[rank >> 3] >> (rank & 7) & 1)
