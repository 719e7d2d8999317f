"""The reading side of a rank's telemetry: needs neither the writer's cooperation nor its life."""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from c4bench.collective import ring_layout as layout
from c4bench.collective.recorder import FREE, CommEntry, ConnName, Owner
from c4bench.collective.tally import Mark, roundest
from c4bench.errors import UsageError
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, OpRecord

Decoded = TypeVar("Decoded")
_ATTEMPTS = 1000
_FREE = object()  # what a place given back decodes to


class Ring(NamedTuple):
    """What a file says now."""

    comms: tuple[CommRecord, ...]
    ops: tuple[OpRecord, ...]
    conns: tuple[ConnRecord, ...]
    arrivals: tuple[ArrivalRecord, ...]


class _End(NamedTuple):
    """An end of a connection: its record without the tally, how many messages that has counted, what is told of it."""

    name: ConnName
    entry: CommEntry
    raw: bytes
    counted: int
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
        self._known: dict[int, tuple[int, Any]] = {}
        self._operations: dict[int, tuple[tuple[int, ...], list[OpRecord | None]]] = {}
        self._told: dict[int, tuple[int, Mark]] = {}

    def read(self, now_s: float | None = None, since_s: float = 0.0) -> Ring:
        """Everything in the file; operations by communicator and sequence number, but those finished before `since_s`.

        With `now_s`, on the recording host's clock, the time a connection has been in its present state is added to
        that state's counter, so that a wait still going on can be seen. Raises UsageError for a damaged file.
        """
        comms = dict(self._table(layout.COMMS_AT, layout.COMM_BYTES, layout.COMMS, _comm))
        ops = [op for index, entry in comms.items() for op in self._ops(index, entry)]
        if since_s:
            ops = [op for op in ops if op.finished_s == 0.0 or op.finished_s >= since_s]
        ops.sort(key=_op_order)
        now_ns = None if now_s is None else round(now_s * 1e9)
        sending = self._ends(comms, layout.CONN_NAMES_AT, (layout.CONNS_AT, layout.CONN_BYTES))
        receiving = self._ends(comms, layout.ARRIVAL_NAMES_AT, (layout.ARRIVALS_AT, layout.ARRIVAL_BYTES))
        return Ring(
            tuple(entry.record for entry in comms.values()),
            tuple(ops),
            tuple(_conn(end, now_ns) for end in sending),
            tuple(_arrival(end) for end in receiving),
        )

    def _table(
        self, base: int, size: int, places: int, decode: Callable[[bytes], Decoded]
    ) -> Iterator[tuple[int, Decoded]]:
        """The places in use of a table, which is filled from the front, decoded."""
        for index in range(places):
            found = self._decoded(base + index * 2 * size, size, decode)
            if found is None:
                return
            if found is not _FREE:
                yield index, found

    def _decoded(self, offset: int, size: int, decode: Callable[[bytes], Any]) -> Any:  # noqa: ANN401  (as decoded)
        """A record's value; None for one never written, `_FREE` for one given back."""
        newest = max(layout.generations(self._memory, offset, size))
        known = self._known.get(offset)
        if known is not None and known[0] == newest:
            return known[1]
        found = _record(self._memory, self._path, offset, size)
        if found is None:
            return None
        generation, raw = found
        value = decode(raw) if raw != FREE else _FREE
        self._known[offset] = (generation, value)
        return value

    def _ops(self, comm: int, entry: CommEntry) -> Iterator[OpRecord]:
        """A communicator's operations; only places that were written to since the last time are looked at."""
        seen, ops = self._operations.get(comm) or ((), [None] * layout.OPS_PER_COMM)
        now = layout.operation_generations(self._memory, comm)
        if now != seen:
            changed = {place // 2 for place, generation in enumerate(now) if not seen or generation != seen[place]}
            base = layout.operations_at(comm)
            for place in changed:
                found = _record(self._memory, self._path, base + place * 2 * layout.OP_BYTES, layout.OP_BYTES)
                ops[place] = _op(found[1], entry) if found and found[1] != FREE else None
            self._operations[comm] = (now, ops)
        return (op for op in ops if op is not None)

    def _ends(self, comms: dict[int, CommEntry], names_at: int, values: tuple[int, int]) -> Iterator[_End]:
        """Every connection end in a pair of tables."""
        values_at, size = values
        for index, name in self._table(names_at, layout.CONN_NAME_BYTES, layout.CONNS, _name):
            at = values_at + index * 2 * size
            found = _record(self._memory, self._path, at, size)
            # A connection may have been recorded after the communicators were read; the next reading has both.
            if found is not None and name.comm in comms:
                raw = found[1]
                count, *sums = layout.TALLY.unpack_from(raw, len(raw) - layout.TALLY.size)
                yield _End(name, comms[name.comm], raw, count, self._mark(at, count, sums))

    def _mark(self, at: int, count: int, sums: list[int]) -> Mark:
        """What is told of the tally at `at`: the roundest count since it was read last."""
        before, mark = self._told.get(at, (0, Mark(0, 0)))
        if count != before:
            # A place that was given back counts from nothing again.
            mark = roundest(before if count > before else 0, count, sums)
            self._told[at] = (count, mark)
        return mark


def read_owner(path: Path) -> Owner:
    """The process that writes the file at `path`. Raises UsageError as `read_ring` does."""
    found = _record(_load(path), path, layout.HEADER_BYTES, layout.PROCESS_BYTES)
    if found is None:
        raise UsageError(f"{path} names no owner; it was not written by a c4bench recorder")
    return msgspec.msgpack.decode(found[1], type=Owner)


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


def _record(memory: mmap.mmap, path: Path, offset: int, size: int) -> tuple[int, bytes] | None:
    """A record's generation and value, or None for one never written.

    Two spoiled copies mean that the writer overtook this reading twice, so it runs and another reading will do; or,
    after many attempts, that the file is damaged.
    """
    for _ in range(_ATTEMPTS):
        found = layout.read_newest(memory, offset, size)
        if found is not None or not any(layout.generations(memory, offset, size)):
            return found
    raise UsageError(f"{path} is damaged at byte {offset}: no complete copy of a record")


def _comm(raw: bytes) -> CommEntry:
    return msgspec.msgpack.decode(raw, type=CommEntry)


def _name(raw: bytes) -> ConnName:
    return msgspec.msgpack.decode(raw, type=ConnName)


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
        awaits=_ranks(int.from_bytes(awaits, "little")),
    )


def _conn(end: _End, now_ns: int | None) -> ConnRecord:
    (
        messages,
        size_bytes,
        credit,
        data,
        transfer,
        progress,
        outstanding,
        owed,
        port,
        state,
        since,
    ) = layout.CONN.unpack_from(end.raw)
    spent = {"idle": 0, "credit": credit, "data": data, "transfer": transfer}
    if now_ns is not None:
        spent[layout.STATES[state]] += max(0, now_ns - since)
    return ConnRecord(
        comm=end.entry.record.comm,
        rank=end.entry.rank,
        peer=end.name.peer,
        source=end.name.source,
        destination=end.name.destination,
        qp=end.name.qp,
        source_port=port,
        messages=messages,
        size_bytes=size_bytes,
        wait_credit_s=spent["credit"] / 1e9,
        wait_data_s=spent["data"] / 1e9,
        transfer_s=spent["transfer"] / 1e9,
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
        comm=end.entry.record.comm,
        rank=end.entry.rank,
        peer=end.name.peer,
        source=end.name.source,
        destination=end.name.destination,
        qp=end.name.qp,
        messages=end.counted,
        arrived=end.mark.messages,
        arrived_sum_ns=end.mark.sum_ns,
    )


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode()


def _ranks(bits: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)
