"""Read a rank's telemetry file. The writer need not cooperate or be alive."""

import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  (its name in the module says nothing)
from typing import Final, NamedTuple

from c4bench.collective import ring_layout as layout
from c4bench.collective.ring_ends import Ends
from c4bench.collective.ring_entries import CommEntry, ConnName, Owner
from c4bench.collective.table_reader import TableReader, Value, record
from c4bench.decoding import DecodingError, from_msgpack
from c4bench.errors import UsageError
from c4bench.model.numbering import Numbering, Numbers
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord
from c4bench.model.window import (
    ARRIVAL,
    CONN,
    Caller,
    CallName,
    EndName,
    arrival_records,
    conn_records,
    op_records,
)

# Rows of a window's tables have the numbers of the file's records, in the same order, between these.
_CALLER_AND_CALL, _LENGTH = Struct("<2I"), Struct("<Q")
_NO_AWAITS = bytes(_LENGTH.size)
_OP_NUMBERS = layout.OP.size - layout.NAMES.size
_FINISHED: Final = 1  # in an `_Op`


class RankTables(NamedTuple):
    """A rank's part of the tables of a `Window`."""

    op_table: bytes
    awaits: bytes
    conn_table: bytes
    arrival_table: bytes


class TelemetrySnapshot(NamedTuple):
    """The records of a file."""

    comms: tuple[CommRecord, ...]
    ops: tuple[OpRecord, ...]
    conns: tuple[ConnRecord, ...]
    arrivals: tuple[ArrivalRecord, ...]


# An operation's sequence number, when it finished (s, 0 if it has not), its row, and the ranks that it awaits.
_Op = tuple[int, float, bytes, bytes]


def read_telemetry_file(path: Path, now_s: float | None = None) -> TelemetrySnapshot:
    """Read the file at `path` once; see `TelemetryReader.snapshot`."""
    return TelemetryReader(path, Numbering()).snapshot(now_s)


def read_telemetry(path: Path, descriptor: int) -> TelemetrySnapshot:
    """Read the file at `path`, open as `descriptor`, once and by a copy: its owner may cut it meanwhile.

    Raises UsageError as `TelemetryReader` does.
    """
    return TelemetryReader(path, Numbering(), _copy(path, descriptor)).snapshot()


class TelemetryReader:
    """Reads the file at `path` repeatedly, and looks only at records that have changed; `numbering` is its host's.

    It maps the file, whose owner can end it by cutting that, unless the content is given as `memory`. `changes` counts
    the changes of what it numbers. Raises UsageError for a file that is truncated or not a telemetry file.
    """

    def __init__(self, path: Path, numbering: Numbering, memory: mmap.mmap | None = None) -> None:
        self._path = path
        self._memory = memory or _load(path)
        self._numbering = numbering
        self._comms = self._table(layout.COMMS_AT, layout.COMM_BYTES, layout.COMMS, partial(_decoded, path, CommEntry))
        self._entries: dict[int, CommEntry] = {}
        self._operations: dict[int, _Operations] = {}
        sending = self._table(layout.CONNS_AT, layout.CONN_BYTES, layout.CONNS, partial(_whole, path, layout.CONN))
        receiving = self._table(
            layout.ARRIVALS_AT, layout.ARRIVAL_BYTES, layout.CONNS, partial(_whole, path, layout.TALLY)
        )
        self._sending = Ends(self._names(layout.CONN_NAMES_AT), sending, numbering.sends, CONN)
        self._receiving = Ends(self._names(layout.ARRIVAL_NAMES_AT), receiving, numbering.receives, ARRIVAL)
        self.changes = 0

    def read(self, since_s: float = 0.0) -> RankTables:
        """All rows; operations by communicator and sequence number, without those finished before `since_s`.

        Raises UsageError for a damaged file.
        """
        changed = bool(self._comms.read())
        if changed:
            self._follow({index: entry for index, entry in enumerate(self._comms.values) if entry is not None})
        ops = [op for operations in self._operations.values() for op in operations.read(since_s)]
        conn_table = self._sending.read(self._entries, changed=changed)
        arrival_table = self._receiving.read(self._entries, changed=changed)
        self.changes += changed or self._sending.renamed or self._receiving.renamed
        return RankTables(
            b"".join([row for _, _, row, _ in ops]),
            b"".join([awaits for _, _, _, awaits in ops]),
            conn_table,
            arrival_table,
        )

    def snapshot(self, now_s: float | None = None, since_s: float = 0.0) -> TelemetrySnapshot:
        """The same as records.

        With `now_s`, on the recording host's clock, a connection's time in its current state is added to that state's
        counter, so that an ongoing wait is visible.
        """
        tables, names = self.read(since_s), self._numbering.names
        return TelemetrySnapshot(
            tuple(self.comms),
            tuple(op_records(names, tables.op_table, tables.awaits)),
            tuple(conn_records(names, tables.conn_table, now_s)),
            tuple(arrival_records(names, tables.arrival_table)),
        )

    @property
    def comms(self) -> list[CommRecord]:
        """The rank's communicators."""
        return [entry.record for entry in self._entries.values()]

    @property
    def callers(self) -> list[Caller]:
        """The rank in each of its communicators."""
        return [Caller(entry.record.comm, entry.rank) for entry in self._entries.values()]

    @property
    def sends(self) -> Iterator[EndName]:
        """The sending ends of its connections."""
        return filter(None, self._sending.names)

    @property
    def receives(self) -> Iterator[EndName]:
        """The receiving ends."""
        return filter(None, self._receiving.names)

    def _follow(self, entries: dict[int, CommEntry]) -> None:
        """Read the operations of these communicators from now on, and forget those of others."""
        self._operations = {
            index: self._operations[index] if self._entries.get(index) is entry else self._ops(index, entry)
            for index, entry in sorted(entries.items(), key=lambda item: item[1].record.comm)
        }
        self._entries = entries

    def _ops(self, comm: int, entry: CommEntry) -> "_Operations":
        # An operation's slot follows from its number, so the first one may be anywhere in the table.
        places = layout.OPS_PER_COMM
        self._numbering.comms.number(entry.record)
        caller = self._numbering.callers.number(Caller(entry.record.comm, entry.rank))
        base, decode = layout.operations_at(comm), _Rows(self._path, caller, self._numbering.calls).decode
        return _Operations(TableReader(self._memory, self._path, base, layout.OP_BYTES, places, decode, places))

    def _names(self, base: int) -> TableReader[ConnName]:
        return self._table(base, layout.CONN_NAME_BYTES, layout.CONNS, partial(_decoded, self._path, ConnName))

    def _table(
        self, base: int, size: int, places: int, decode: Callable[[Iterable[bytes]], Iterable[Value]]
    ) -> TableReader[Value]:
        return TableReader(self._memory, self._path, base, size, places, decode)


class _Operations:
    """A communicator's operations. Only those that are new or still running are examined."""

    def __init__(self, table: TableReader[_Op]) -> None:
        self._table = table
        self._recent: dict[int, _Op] = {}
        self._since_s = math.inf

    def read(self, since_s: float) -> list[_Op]:
        """All operations but those finished before `since_s`, by sequence number."""
        written = self._table.read()
        values = self._table.values
        # When the clock is set back, old operations become recent again.
        places = written if since_s >= self._since_s else range(len(values))
        self._since_s = since_s
        known = self._recent | {place: values[place] for place in places}
        self._recent = {
            place: op for place, op in known.items() if op and (not op[_FINISHED] or op[_FINISHED] >= since_s)
        }
        return sorted(self._recent.values())


def read_owner(path: Path, descriptor: int) -> Owner:
    """The process that writes the file at `path`, open as `descriptor`. Raises as `read_telemetry_file` does."""
    raw_owner = record(_copy(path, descriptor, layout.COMMS_AT), path, layout.HEADER_BYTES, layout.PROCESS_BYTES)
    if raw_owner is None:
        raise UsageError(f"{path} has no owner record; it was not written by a c4bench recorder")
    return next(_decoded(path, Owner, [raw_owner]))


def _load(path: Path) -> mmap.mmap:
    try:
        # A link is not followed, and a FIFO not waited for.
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
    _check_size(path, len(memory))
    _check_header(path, memory)
    return memory


def _copy(path: Path, descriptor: int, size: int = layout.FILE_BYTES) -> mmap.mmap:
    """The first `size` bytes of an open telemetry file, in memory of our own. Most of the file is holes."""
    _check_size(path, os.fstat(descriptor).st_size)
    memory, end = mmap.mmap(-1, layout.FILE_BYTES), 0
    with suppress(OSError), memoryview(memory) as view:  # there is no data behind `end`
        while end < size:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
            if start < end:
                with view[start:end] as part:
                    os.preadv(descriptor, [part], start)
            end = max(end, start)
    _check_header(path, memory)
    return memory


def _check_size(path: Path, size: int) -> None:
    if size != layout.FILE_BYTES:
        raise UsageError(f"{path} has {size} bytes and a telemetry file has {layout.FILE_BYTES}; it is damaged")


def _check_header(path: Path, memory: mmap.mmap) -> None:
    if layout.HEADER.unpack_from(memory) != (layout.MAGIC, *layout.SIZES):
        raise UsageError(f"{path} is not a telemetry file of this version; read it with the c4bench that wrote it")


def _decoded(path: Path, kind: type[Value], records: Iterable[bytes]) -> Iterator[Value]:
    """The records. Raises UsageError for a damaged one."""
    for raw in records:
        try:
            yield from_msgpack(raw, kind)
        except DecodingError as error:
            raise UsageError(f"{path} is damaged: {error}") from None


class _Rows:
    """Makes rows of the records of one caller's operations."""

    def __init__(self, path: Path, caller: int, calls: Numbers[CallName]) -> None:
        self._path, self._caller, self._calls = path, caller, calls
        # By the names of operations, packed: the numbers that their rows begin with.
        self._prefixes: dict[bytes, bytes] = {}

    def decode(self, records: Iterable[bytes]) -> list[_Op]:
        """The operations. Raises UsageError for a damaged record."""
        ops: list[_Op] = []
        prefixes, unpack, end = self._prefixes, layout.OP.unpack_from, layout.OP.size
        for raw in records:
            try:
                seq, _, _, _, finished_ns, packed = unpack(raw)
                prefix = prefixes.get(packed) or self._prefix(packed)
            except (StructError, UnicodeDecodeError):
                reason = f"an operation of {len(raw)} bytes, or without a name"
                raise UsageError(f"{self._path} is damaged: {reason}") from None
            awaits = raw[end:]
            row = prefix + raw[:_OP_NUMBERS] + (_LENGTH.pack(len(awaits)) if awaits else _NO_AWAITS)
            ops.append((seq, finished_ns / 1e9, row, awaits))
        return ops

    def _prefix(self, packed: bytes) -> bytes:
        call = self._calls.number(CallName(*layout.names_in(packed)))
        return self._prefixes.setdefault(packed, _CALLER_AND_CALL.pack(self._caller, call))


def _whole(path: Path, numbers: Struct, records: Iterable[bytes]) -> list[bytes]:
    """Check that all records have as many numbers as there have to be."""
    whole = list(records)
    for length in {*map(len, whole)} - {numbers.size}:
        raise UsageError(f"{path} is damaged: a connection of {length} bytes instead of {numbers.size}")
    return whole
