"""Read a rank's telemetry file. The writer need not cooperate or be alive."""

import math
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, compress, count, repeat
from operator import add, ne
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  (its name in the module says nothing)
from typing import Final, Generic, NamedTuple, TypeVar

from c4bench.collective import ring_layout as layout
from c4bench.collective.ring_layout import CommEntry, ConnName, Owner, roundest
from c4bench.decoding import DecodingError, from_msgpack
from c4bench.errors import UsageError
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord
from c4bench.model.window import (
    ARRIVAL,
    CONN,
    Caller,
    CallName,
    EndName,
    Numbering,
    Numbers,
    arrival_records,
    conn_records,
    op_records,
)

Value = TypeVar("Value")
_ATTEMPTS = 1000


class TableReader(Generic[Value]):
    """A table of `places` records of `size` bytes at `base`; `values` are the records at the last reading.

    A slot not in use is None. The table is filled from the front, so `values` covers only the slots in use, and at
    least `at_once`. `decode` gets all records that have changed: a call for each would cost as much as decoding it.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        path: Path,
        base: int,
        size: int,
        places: int,
        decode: Callable[[Iterable[bytes]], Iterable[Value]],
        at_once: int = 1,
    ) -> None:
        self._memory, self._path = memory, path
        self._base, self._size, self._places = base, size, places
        self._decode = decode
        self._generations: tuple[int, ...] = ()
        self._sums: tuple[int, ...] = ()
        self.values: list[Value | None] = [None] * at_once

    def read(self) -> Collection[int]:
        """Read the table; returns the indices of records that have changed. Raises UsageError for a damaged file."""
        memory, base, size, values = self._memory, self._base, self._size, self.values
        now = layout.generations(memory, base, size, len(values))
        if now == self._generations:
            return ()
        while any(now[-2:]) and len(values) < self._places:
            values += [None] * min(len(values), self._places - len(values))
            now = layout.generations(memory, base, size, len(values))
        # A write to either copy increases the sum of both.
        sums = tuple(map(add, now[::2], now[1::2]))
        written = list(compress(count(), map(ne, sums, chain(self._sums, repeat(0)))))
        newest = [base + (2 * place + (now[2 * place + 1] > now[2 * place])) * size for place in written]
        copies = layout.read_copies(memory, newest, size)
        if None in copies:
            places = zip(copies, written, strict=True)
            copies = [self._record(place) if copy is None else copy for copy, place in places]
        # An empty record is a slot that was released.
        decoded = iter(self._decode(filter(None, copies)))
        for place, copy in zip(written, copies, strict=True):
            values[place] = next(decoded) if copy else None
        # The generations from before the reading: anything written during it is read again next time.
        self._generations, self._sums = now, sums
        return written

    def _record(self, place: int) -> bytes | None:
        return record(self._memory, self._path, self._base + 2 * place * self._size, self._size)


def record(memory: mmap.mmap, path: Path, offset: int, size: int) -> bytes | None:
    """A record, or None for one never written.

    Two invalid copies mean that the writer wrote twice during the reading, so it is read again. After many attempts the
    file must be damaged: raises UsageError.
    """
    for _ in range(_ATTEMPTS):
        content = layout.read_slot(memory, offset, size)
        if content is not None or not any(layout.generations(memory, offset, size)):
            return content
    raise UsageError(f"{path} is damaged at byte {offset}: no complete copy of a record")


# What stands before and after a record's numbers in a row.
_END, _MARK = Struct("<Q"), Struct("<2Q")
_NO_MARK = bytes(_MARK.size)


class ConnectionEnds:
    """The sending or the receiving ends of connections: a table of names, and one of numbers that end in a tally.

    `names` are the ends by place, and `renamed` says whether the last reading may have changed them. `row` is a row of
    the window's table.
    """

    def __init__(
        self, names: TableReader[ConnName], numbers: TableReader[bytes], host: Numbers[EndName], row: Struct
    ) -> None:
        self._table, self._numbers, self._host = names, numbers, host
        self._width = row.size - _END.size - _MARK.size
        self.names: list[EndName | None] = []
        self.renamed = False
        self._prefixes: list[bytes] = []
        # By place: the count of messages, and what has been written since it was listed.
        self._counted: dict[int, int] = {}
        self._written: set[int] = set()

    def read(self, comms: Mapping[int, CommEntry], *, changed: bool) -> bytes:
        """The rows of ends that belong to these communicators; `changed` if those may differ from before."""
        self.renamed = bool(self._table.read()) or changed
        if self.renamed:
            self.names = [_end(name, comms) for name in self._table.values]
            self._prefixes = [b"" if name is None else _END.pack(self._host.number(name)) for name in self.names]
        self._written.update(self._numbers.read())
        width, numbers = self._width, zip(self._prefixes, self._numbers.values, strict=False)
        rows = [
            (prefix, raw[:width], self._mark(place, raw))
            for place, (prefix, raw) in enumerate(numbers)
            if prefix and raw is not None
        ]
        return b"".join(chain.from_iterable(rows))

    def _mark(self, place: int, raw: bytes) -> bytes:
        """The roundest count since the place was listed last, with its sum; zeros if no message has come."""
        if place not in self._written:
            return _NO_MARK
        self._written.discard(place)
        counted, *sums = layout.TALLY.unpack_from(raw, len(raw) - layout.TALLY.size)
        before = self._counted.get(place, 0)
        if counted == before:
            return _NO_MARK
        self._counted[place] = counted
        # A slot that was released and reused counts from 0 again.
        return _MARK.pack(*roundest(before if counted > before else 0, counted, sums))


def _end(name: ConnName | None, comms: Mapping[int, CommEntry]) -> EndName | None:
    if name is None or name.comm not in comms:
        return None
    entry = comms[name.comm]
    return EndName(entry.record.comm, entry.rank, name.peer, name.source, name.destination, name.qp)


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
    the changes of what it numbers. `rename` gives each communicator as it is to be called. Raises UsageError for a file
    that is truncated or not a telemetry file.
    """

    def __init__(
        self,
        path: Path,
        numbering: Numbering,
        memory: mmap.mmap | None = None,
        rename: Callable[[CommEntry], CommEntry] | None = None,
    ) -> None:
        self._path = path
        self._memory = memory or _load(path)
        self._numbering = numbering
        self._comms = self._table(layout.COMMS_AT, layout.COMM_BYTES, layout.COMMS, partial(_entries, path, rename))
        self._entries: dict[int, CommEntry] = {}
        self._operations: dict[int, _Operations] = {}
        sending = self._table(layout.CONNS_AT, layout.CONN_BYTES, layout.CONNS, partial(_whole, path, layout.CONN))
        receiving = self._table(
            layout.ARRIVALS_AT, layout.ARRIVAL_BYTES, layout.CONNS, partial(_whole, path, layout.TALLY)
        )
        self._sending = ConnectionEnds(self._names(layout.CONN_NAMES_AT), sending, numbering.sends, CONN)
        self._receiving = ConnectionEnds(self._names(layout.ARRIVAL_NAMES_AT), receiving, numbering.receives, ARRIVAL)
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
    """The first `size` bytes of an open telemetry file, in memory of our own."""
    memory = mmap.mmap(-1, layout.FILE_BYTES)
    _refresh(memory, path, descriptor, size)
    return memory


class TelemetryCopy:
    """A copy of the telemetry file at `path`, open as `descriptor`: its owner may cut it, which ends who maps it.

    Raises UsageError for what is no telemetry file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self.memory = _copy(path, descriptor)

    def refresh(self) -> None:
        """Copy again what is in the file now. Raises UsageError where it has been cut."""
        _refresh(self.memory, self._path, self._descriptor, layout.FILE_BYTES)


def _refresh(memory: mmap.mmap, path: Path, descriptor: int, size: int) -> None:
    """Copy the first `size` bytes of a file, most of which are holes."""
    _check_size(path, os.fstat(descriptor).st_size)
    end = 0
    with suppress(OSError), memoryview(memory) as view:  # there is no data behind `end`
        while end < size:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
            if start < end:
                with view[start:end] as part:
                    os.preadv(descriptor, [part], start)
            end = max(end, start)
    _check_header(path, memory)


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


def _entries(
    path: Path, rename: Callable[[CommEntry], CommEntry] | None, records: Iterable[bytes]
) -> Iterator[CommEntry]:
    entries = _decoded(path, CommEntry, records)
    return map(rename, entries) if rename else entries


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
