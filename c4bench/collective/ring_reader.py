"""The reading side of a rank's telemetry: needs neither the writer's cooperation nor its life."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from c4bench.collective import ring_layout as layout
from c4bench.collective.recorder import CommEntry, ConnName, Owner
from c4bench.collective.table_reader import TableReader, Value, record
from c4bench.collective.tally import Mark, roundest
from c4bench.errors import UsageError
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord

_NOBODY = bytes(layout.MAX_RANKS // 8)


class Ring(NamedTuple):
    """What a file says now."""

    comms: tuple[CommRecord, ...]
    ops: tuple[OpRecord, ...]
    conns: tuple[ConnRecord, ...]
    arrivals: tuple[ArrivalRecord, ...]


class _Counters(NamedTuple):
    """The record of an end of a connection: what is before its tally, how many that has counted, and its sums."""

    numbers: bytes
    counted: int
    sums: list[int]


class _End(NamedTuple):
    """An end of a connection, and what is told of its tally."""

    name: ConnName
    entry: CommEntry
    counters: _Counters
    mark: Mark


def read_ring(path: Path, now_s: float | None = None) -> Ring:
    """Everything in the file at `path`, read once; see `RingReader`."""
    return RingReader(path).read(now_s)


class RingReader:
    """Reads the file at `path` again and again; what has not changed since the last time is not decoded again.

    Raises UsageError for a file that is truncated or not a telemetry file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory = _load(path)
        self._comms = self._table(layout.COMMS_AT, layout.COMM_BYTES, layout.COMMS, _comm)
        self._operations: dict[int, tuple[CommEntry, TableReader[OpRecord]]] = {}
        self._sending = self._ends(layout.CONN_NAMES_AT, layout.CONNS_AT, layout.CONN_BYTES)
        self._receiving = self._ends(layout.ARRIVAL_NAMES_AT, layout.ARRIVALS_AT, layout.ARRIVAL_BYTES)

    def read(self, now_s: float | None = None, since_s: float = 0.0) -> Ring:
        """Everything in the file; operations by communicator and sequence number, but those finished before `since_s`.

        With `now_s`, on the recording host's clock, the time a connection has been in its present state is added to
        that state's counter, so that a wait still going on can be seen. Raises UsageError for a damaged file.
        """
        comms = {index: entry for index, entry in enumerate(self._comms.read()) if entry is not None}
        ops = [
            op
            for index, entry in comms.items()
            for op in self._ops(index, entry).read()
            if op is not None and (op.finished_s == 0.0 or op.finished_s >= since_s)
        ]
        ops.sort(key=_op_order)
        now_ns = None if now_s is None else round(now_s * 1e9)
        return Ring(
            tuple(entry.record for entry in comms.values()),
            tuple(ops),
            tuple(_conn(end, now_ns) for end in self._sending.read(comms)),
            tuple(_arrival(end) for end in self._receiving.read(comms)),
        )

    def _ops(self, comm: int, entry: CommEntry) -> TableReader[OpRecord]:
        """The operations of a communicator; those of another that had its place before are forgotten."""
        known = self._operations.get(comm)
        if known is None or known[0] is not entry:
            # An operation's place goes by its number, and the first that is seen may have any.
            places = layout.OPS_PER_COMM
            table = TableReader(
                self._memory,
                self._path,
                layout.operations_at(comm),
                layout.OP_BYTES,
                places,
                partial(_op, entry=entry),
                places,
            )
            known = self._operations[comm] = (entry, table)
        return known[1]

    def _ends(self, names_at: int, values_at: int, size: int) -> "_Ends":
        names = self._table(names_at, layout.CONN_NAME_BYTES, layout.CONNS, _name)
        return _Ends(names, self._table(values_at, size, layout.CONNS, _counters))

    def _table(self, base: int, size: int, places: int, decode: Callable[[bytes], Value]) -> TableReader[Value]:
        return TableReader(self._memory, self._path, base, size, places, decode)


class _Ends:
    """The sending or the receiving ends of connections: a table of names, and one of what they have counted."""

    def __init__(self, names: TableReader[ConnName], counters: TableReader[_Counters]) -> None:
        self._names, self._counters = names, counters
        self._told: dict[int, tuple[int, Mark]] = {}

    def read(self, comms: Mapping[int, CommEntry]) -> Iterator[_End]:
        """Those of these communicators; of one recorded since these were read, the next reading has them."""
        names = self._names.read()
        for place, (name, counters) in enumerate(zip(names, self._counters.read(), strict=False)):
            if name is not None and counters is not None and name.comm in comms:
                yield _End(name, comms[name.comm], counters, self._mark(place, counters))

    def _mark(self, place: int, counters: _Counters) -> Mark:
        """The roundest count since it was read last."""
        before, mark = self._told.get(place, (0, Mark(0, 0)))
        if counters.counted != before:
            # A place that was given back counts from nothing again.
            mark = roundest(before if counters.counted > before else 0, counters.counted, counters.sums)
            self._told[place] = (counters.counted, mark)
        return mark


def read_owner(path: Path) -> Owner:
    """The process that writes the file at `path`. Raises UsageError as `read_ring` does."""
    found = record(_load(path), path, layout.HEADER_BYTES, layout.PROCESS_BYTES)
    if found is None:
        raise UsageError(f"{path} names no owner; it was not written by a c4bench recorder")
    return msgspec.msgpack.decode(found, type=Owner)


def _load(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as telemetry: {error}") from error
    if len(memory) != layout.FILE_BYTES:
        raise UsageError(
            f"{path} has {len(memory)} bytes where a telemetry file has {layout.FILE_BYTES}; it is damaged"
        )
    if layout.HEADER.unpack_from(memory) != (layout.MAGIC, *layout.SIZES):
        raise UsageError(f"{path} is not a telemetry file of this version; read it with the c4bench that wrote it")
    return memory


def _comm(raw: bytes) -> CommEntry:
    return msgspec.msgpack.decode(raw, type=CommEntry)


def _name(raw: bytes) -> ConnName:
    return msgspec.msgpack.decode(raw, type=ConnName)


def _counters(raw: bytes) -> _Counters:
    end = len(raw) - layout.TALLY.size
    counted, *sums = layout.TALLY.unpack_from(raw, end)
    return _Counters(raw[:end], counted, sums)


def _op_order(op: OpRecord) -> tuple[str, int]:
    return op.comm, op.seq


def _op(raw: bytes, entry: CommEntry) -> OpRecord:
    seq, size_bytes, entered, started, finished, kind, algorithm, dtype, awaits = layout.OP.unpack(raw)
    return OpRecord(
        comm=entry.record.comm,
        rank=entry.rank,
        seq=seq,
        kind=_text(kind),
        algorithm=_text(algorithm),
        dtype=_text(dtype),
        size_bytes=size_bytes,
        entered_s=entered / 1e9,
        started_s=started / 1e9,
        finished_s=finished / 1e9,
        awaits=() if awaits == _NOBODY else _ranks(int.from_bytes(awaits, "little")),
    )


def _whose(end: _End) -> tuple[str, int, int, str, str, int]:
    """What records of either end begin with: communicator, rank, peer, source, destination, QP."""
    return end.entry.record.comm, end.entry.rank, end.name.peer, end.name.source, end.name.destination, end.name.qp


def _conn(end: _End, now_ns: int | None) -> ConnRecord:
    (
        messages,
        size_bytes,
        credit,
        data,
        transfer,
        shared,
        progress,
        outstanding,
        owed,
        port,
        state,
        since,
    ) = layout.CONN.unpack(end.counters.numbers)
    spent = {"idle": 0, "credit": credit, "data": data, "transfer": transfer}
    if now_ns is not None:
        spent[layout.STATES[state]] += max(0, now_ns - since)
    return ConnRecord(
        *_whose(end),
        source_port=port,
        messages=messages,
        size_bytes=size_bytes,
        wait_credit_s=spent["credit"] / 1e9,
        wait_data_s=spent["data"] / 1e9,
        transfer_s=spent["transfer"] / 1e9,
        shared_s=shared / 1e9,
        last_progress_s=progress / 1e9,
        outstanding=outstanding,
        owed=owed,
        state=layout.STATES[state],
        state_since_s=since / 1e9,
        posted=end.mark.messages,
        posted_sum_ns=end.mark.sum_ns,
    )


def _arrival(end: _End) -> ArrivalRecord:
    return ArrivalRecord(
        *_whose(end),
        messages=end.counters.counted,
        arrived=end.mark.messages,
        arrived_sum_ns=end.mark.sum_ns,
    )


@lru_cache(maxsize=1024)
def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode()


def _ranks(bits: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)
