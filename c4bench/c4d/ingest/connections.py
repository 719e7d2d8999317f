"""A job's connections: the newest record of each, of both its ends, as it was written and as columns of numbers."""

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from c4bench.attribution.localise import Cell
from c4bench.c4d.columns import NEVER, Bools, Index, Ints, Table, columns, objects, rounds
from c4bench.c4d.ingest.batch import Batch
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.members import FOREIGN, UNKNOWN, Members
from c4bench.c4d.ingest.record_validator import Columns, RecordValidator, counters_finite, counters_monotonic
from c4bench.model.telemetry import ArrivalRecord, ConnRecord

ConnKey = tuple[str, int, int, str, str, int]
EndKey = tuple[str, int, str, str, int]  # communicator, receiving member, source, destination, QP of the sending end
_KEY = attrgetter("comm", "rank", "peer", "source", "destination", "qp")
_END_KEY = attrgetter("comm", "rank", "source", "destination", "qp")
_NUMBERS = (
    "messages",
    "size_bytes",
    "wait_credit_s",
    "wait_data_s",
    "transfer_s",
    "shared_s",
    "last_progress_s",
    "outstanding",
    "source_port",
)


def key(conn: ConnRecord) -> ConnKey:
    """What identifies a connection for as long as its counters run."""
    conn_key: ConnKey = _KEY(conn)
    return conn_key


def cell_of(conn: ConnRecord) -> Cell:
    """Which cell of the matrix a connection is in now; path planning may move it to another."""
    return (conn.source, conn.destination, str(conn.source_port))


class ConnView(msgspec.Struct, frozen=True):
    """A connection's newest record, and the host that wrote it."""

    record: ConnRecord
    host: str


def progress_s(clocks: HostClocks, view: ConnView) -> float:
    """When a connection last had a message acknowledged, on the master's clock."""
    return view.record.last_progress_s + clocks.offset_s(view.host)


class Connections(Mapping[ConnKey, ConnView]):
    """The sending ends; `table` has a row for each, with the newest numbers and the cell it is in.

    `moves` is another number whenever a connection is new, has ended, or has been moved to another cell. A row that
    another connection has had before has another `life`.
    """

    def __init__(self, members: Members) -> None:
        self.table = Table(member=0, record=None, cell=None, new=False, life=0, **dict.fromkeys(_NUMBERS, NEVER))
        self.moves = 0
        self._members = members
        self._rows = Index()
        self._free: list[int] = []

    def __getitem__(self, key: ConnKey) -> ConnView:
        return self._view(self._rows[key])

    def __iter__(self) -> Iterator[ConnKey]:
        known = self.table["record"]
        return (key for key, row in self._rows.items() if known[row] is not None)

    def __len__(self) -> int:
        return len(self.records())

    def records(self) -> list[ConnRecord]:
        """The newest record of each."""
        return [record for record in self.table.used("record").tolist() if record is not None]

    def remove(self, comms: Collection[str]) -> None:
        """Forget the connections of these communicators."""
        rows = _remove(self._rows, self._free, comms)
        for name in _NUMBERS:
            self.table[name][rows] = NEVER
        for name, blank in (("record", None), ("cell", None), ("new", False)):
            self.table[name][rows] = blank
        self.table["life"][rows] += 1
        self.moves += 1

    def take_new(self) -> list[ConnRecord]:
        """The newest record of each that has another since the last call."""
        return _take_new(self.table)

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        records, windows = batch.conns.records, batch.conns.windows()
        rows = self._rows.rows(map(_KEY, records), len(records))
        for index in np.flatnonzero(rows < 0).tolist():
            rows[index] = self._open(_KEY(records[index]))
        which = np.flatnonzero(rows > UNKNOWN)
        own = (rows >= 0) & self._members.on_host(self.table["member"][rows], batch, windows)
        which = validator.filter("foreign connection", which, own[which], batch.hosts, windows)
        numbers = dict(zip(_NUMBERS, columns(records, *_NUMBERS), strict=True))
        which = validator.filter("torn connection", which, counters_finite(numbers)[which], batch.hosts, windows)
        held, ends_s = objects(records), batch.ends_s(windows)
        for turn in rounds(rows[which]):
            fresh = which[turn]
            now = {name: values[fresh] for name, values in numbers.items()}
            before = {name: self.table[name][rows[fresh]] for name in _NUMBERS}
            grown = counters_monotonic(now, before)
            validator.filter("torn connection", fresh, grown, batch.hosts, windows)
            moved = grown & self._changed(now, before, rows[fresh], held[fresh])
            put = fresh[moved]
            for name, values in now.items():
                self.table[name][rows[put]] = values[moved]
            self.table["record"][rows[put]] = held[put]
            self.table["new"][rows[put]] = True
            self._set_cells(rows[fresh[moved & (now["source_port"] != before["source_port"])]])
            acted_s = np.minimum(numbers["last_progress_s"][put], ends_s[put])
            self._members.note_progress(self.table["member"][rows[put]], acted_s, ends_s[put])

    def _set_cells(self, rows: Ints) -> None:
        """Set the cells of connections that are new or have moved to another path."""
        self.moves += bool(len(rows))
        for row in rows.tolist():
            self.table["cell"][row] = cell_of(self.table["record"][row])

    def _changed(self, now: Columns, before: Columns, rows: Ints, held: NDArray[np.object_]) -> Bools:
        """Whether records differ from those known; most do by a counter."""
        changed: Bools = np.zeros(len(rows), np.bool_)
        for name in _NUMBERS:
            changed |= now[name] != before[name]
        for index in np.flatnonzero(~changed).tolist():
            changed[index] = self.table["record"][rows[index]] != held[index]
        return changed

    def _open(self, key: ConnKey) -> int:
        """A row for a connection between two members; it is known from its first whole record on."""
        comm, rank, peer, *_ = key
        member = self._members.row(comm, rank)
        if member >= 0 and self._members.row(comm, peer) >= 0 and key not in self._rows:
            self._rows[key] = self._free.pop() if self._free else self.table.add()
            self.table["member"][self._rows[key]] = member
        return self._rows.get(key, min(member, FOREIGN))

    def _view(self, row: int) -> ConnView:
        return ConnView(self.table["record"][row], self._members.host(int(self.table["member"][row])))


class Arrivals:
    """The receiving ends."""

    def __init__(self, members: Members) -> None:
        self._table = Table(member=0, record=None, new=False)
        self._members = members
        self._rows = Index()
        self._free: list[int] = []

    def remove(self, comms: Collection[str]) -> None:
        """Forget the ends in these communicators."""
        rows = _remove(self._rows, self._free, comms)
        self._table["record"][rows] = None
        self._table["new"][rows] = False

    def take_new(self) -> list[ArrivalRecord]:
        """The newest record of each that has another since the last call."""
        return _take_new(self._table)

    def messages(self, conn: ConnRecord) -> int | None:
        """How many messages of a connection its receiver has seen; None if it does not say."""
        row = self._rows.get((conn.comm, conn.peer, conn.source, conn.destination, conn.qp), -1)
        record: ArrivalRecord | None = self._table["record"][row] if row >= 0 else None
        return None if record is None else record.messages

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        records, windows = batch.arrivals.records, batch.arrivals.windows()
        rows = self._rows.rows(map(_END_KEY, records), len(records))
        for index in np.flatnonzero(rows < 0).tolist():
            rows[index] = self._open(_END_KEY(records[index]))
        which = np.flatnonzero(rows > UNKNOWN)
        own = (rows >= 0) & self._members.on_host(self._table["member"][rows], batch, windows)
        (messages,) = columns(records, "messages")
        ok = own & (messages >= 0)
        which = validator.filter("foreign arrival", which, ok[which], batch.hosts, windows)
        held, rows = objects(records)[which], rows[which]
        changed = self._table["record"][rows] != held
        self._table["record"][rows[changed]] = held[changed]
        self._table["new"][rows[changed]] = True

    def _open(self, key: EndKey) -> int:
        member = self._members.row(key[0], key[1])
        if member >= 0 and key not in self._rows:
            self._rows[key] = self._free.pop() if self._free else self._table.add()
            self._table["member"][self._rows[key]] = member
        return self._rows.get(key, min(member, FOREIGN))


def _remove(rows: Index, free: list[int], comms: Collection[str]) -> list[int]:
    """Remove the keys of these communicators; return their rows, which are now also `free`."""
    ended = [rows.pop(key) for key in [key for key in rows if key[0] in comms]]
    free += ended
    return ended


def _take_new(table: Table) -> list[Any]:
    rows = np.flatnonzero(table.used("new"))
    table["new"][rows] = False
    records: list[Any] = table["record"][rows].tolist()
    return records
