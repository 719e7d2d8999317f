"""A job's connections: the newest numbers of each, of both its ends, as columns."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from c4bench.attribution.weigh import Cell
from c4bench.c4d.columns import NEVER, Floats, Index, Ints, Table, rounds
from c4bench.c4d.ingest.batch import FOREIGN, UNKNOWN, Batch, HostRows
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.members import Members
from c4bench.c4d.ingest.record_validator import RecordValidator, counters_monotonic, counters_valid
from c4bench.model.telemetry import ConnRecord
from c4bench.model.window import STATES, EndName
from c4bench.model.window_columns import Rows, lasting_ns

PairKey = tuple[str, str, str, int]  # communicator, source, destination, QP of the sending end
# Seconds that count up, each in a state; all times (s); and all numbers, cumulative counters first.
_SPENT = {"wait_credit_s": "credit", "wait_data_s": "data", "transfer_s": "transfer"}
_TIMES = (*_SPENT, "shared_s", "last_progress_s", "state_since_s")
_NUMBERS = ("messages", "size_bytes", *_TIMES, "outstanding", "owed", "source_port", "state")
_COUNTERS = 6
# By time: the same of a row of `CONN_ROW`, in ns.
_NS = {name: name.removesuffix("_s") for name in _TIMES}
_LAST_PROGRESS, _PORT, _STATE = map(_NUMBERS.index, ("last_progress_s", "source_port", "state"))


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


class Sums(NamedTuple):
    """Snapshots of ends: the connections' rows in `Pairs`, counts of messages, and sums of their times (ns)."""

    pairs: Ints
    counts: Ints
    sums_ns: "NDArray[np.uint64]"


class Pairs:
    """A row for the two ends of each connection, whichever is known first."""

    def __init__(self) -> None:
        self.rows = Index()
        self._free: list[int] = []

    def row(self, key: PairKey) -> int:
        """The row of a connection, which may be new."""
        if key not in self.rows:
            self.rows[key] = self._free.pop() if self._free else len(self.rows)
        return self.rows[key]

    def remove(self, comms: Collection[str]) -> list[int]:
        """Forget the connections of these communicators; return their rows."""
        return _remove(self.rows, self._free, comms)


class _Ends:
    """One end of each connection, a row each in `table`. A row that another one has had before has another `life`."""

    def __init__(
        self, members: Members, pairs: Pairs, sort: str, key: Callable[[EndName], Hashable], **blanks: float
    ) -> None:
        self.table = Table(
            *blanks, member=0, name=None, pair=0, known=False, life=0, count=0, sum=0, new=False, **blanks
        )
        self._members = members
        self._pairs = pairs
        self._rows = Index()
        self._key = key
        self._free: list[int] = []
        self.numbers = HostRows(sort, self._open)

    def remove(self, comms: Collection[str]) -> list[int]:
        """Forget the ends in these communicators; return their rows."""
        rows = _remove(self._rows, self._free, comms)
        for name, blank in (("name", None), ("known", False), ("new", False)):
            self.table[name][rows] = blank
        self.table["life"][rows] += 1
        return rows

    def take_new(self) -> Sums:
        """The newest snapshot of each end that has another since the last call."""
        rows = np.flatnonzero(self.table.used("new"))
        self.table["new"][rows] = False
        return Sums(self.table["pair"][rows], self.table["count"][rows], self.table["sum"][rows].view(np.uint64))

    def _note_sums(self, rows: Ints, table: Rows, which: Ints) -> None:
        """Note the snapshots in some lines of a table, of ends in these rows."""
        which = which[table["count"][which] != 0]
        rows, counts, sums_ns = rows[which], table["count"][which], table["sum"][which]
        self.table["count"][rows], self.table["sum"][rows] = counts, sums_ns.view(np.int64)
        self.table["new"][rows] = True

    def _open(self, name: EndName) -> int:
        """The row of an end between two members; it is known from its first whole record on."""
        key, member = self._key(name), self._members.row(name.comm, name.rank)
        if key not in self._rows:
            if member < 0 or self._members.row(name.comm, name.peer) < 0:
                return min(member, FOREIGN)
            self._rows[key] = self._free.pop() if self._free else self.table.add()
            row = self._rows[key]
            self.table["member"][row], self.table["name"][row] = member, name
            self.table["pair"][row] = self._pairs.row((name.comm, name.source, name.destination, name.qp))
        return self._rows[key]


class Connections(_Ends, Mapping[EndName, ConnView]):
    """The sending ends; `table` has the newest numbers of each, and `cells` the cell it is in, or () if none is known.

    `moves` is another number whenever a connection is new, has ended, or has been moved to another cell.
    """

    def __init__(self, members: Members, pairs: Pairs) -> None:
        numbers = dict.fromkeys(_NUMBERS, NEVER)
        super().__init__(members, pairs, "sends", lambda name: name, **numbers)
        self.cells: list[Cell] = []
        self.moves = 0

    def __getitem__(self, key: EndName) -> ConnView:
        return self._view(self._rows[key])

    def __iter__(self) -> Iterator[EndName]:
        return iter(self.table["name"][self._known()].tolist())

    def __len__(self) -> int:
        return len(self._known())

    def _known(self) -> Ints:
        return np.flatnonzero(self.table.used("known"))

    def remove(self, comms: Collection[str]) -> list[int]:
        """Forget the connections of these communicators; return their rows."""
        rows = super().remove(comms)
        self.table.block[:, rows] = NEVER
        for row in rows:
            self.cells[row] = ()
        self.moves += 1
        return rows

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        table, windows = batch.conns
        rows = self.numbers.rows(batch, table["end"], windows)
        which = np.flatnonzero(rows > UNKNOWN)
        own = (rows >= 0) & self._members.on_host(self.table["member"][rows], batch, windows)
        which = validator.filter("foreign connection", which, own[which], batch.hosts, windows)
        ends_s = batch.ends_s(windows)
        numbers = _read(table, ends_s)
        valid = counters_valid(numbers[:_COUNTERS], numbers[_LAST_PROGRESS], numbers[_STATE])
        which = validator.filter("torn connection", which, valid[which], batch.hosts, windows)
        for turn in rounds(rows[which]):
            fresh = which[turn]
            now, before = numbers.take(fresh, axis=1), self.table.block.take(rows[fresh], axis=1)
            grown = counters_monotonic(now[:_COUNTERS], before[:_COUNTERS])
            validator.filter("torn connection", fresh, grown, batch.hosts, windows)
            moved = grown & (now != before).any(axis=0)
            put = fresh[moved]
            for column, values in zip(self.table.block, now, strict=True):
                column[rows[put]] = values[moved]
            self.table["known"][rows[put]] = True
            self._note_sums(rows, table, fresh[grown])
            self._set_cells(rows[fresh[moved & (now[_PORT] != before[_PORT])]])
            acted_s = np.minimum(numbers[_LAST_PROGRESS][put], ends_s[put])
            self._members.note_progress(self.table["member"][rows[put]], acted_s, ends_s[put])

    def _set_cells(self, rows: Ints) -> None:
        """Set the cells of connections that are new or have moved to another path."""
        self.moves += bool(len(rows))
        self.cells += [()] * (self.table.count - len(self.cells))
        for row in rows.tolist():
            name = self.table["name"][row]
            self.cells[row] = (name.source, name.destination, str(int(self.table["source_port"][row])))

    def _view(self, row: int) -> ConnView:
        name: EndName = self.table["name"][row]
        of = {column: self.table[column][row].item() for column in _NUMBERS}
        record = ConnRecord(
            *name,
            int(of["source_port"]),
            int(of["messages"]),
            int(of["size_bytes"]),
            of["wait_credit_s"],
            of["wait_data_s"],
            of["transfer_s"],
            of["shared_s"],
            of["last_progress_s"],
            int(of["outstanding"]),
            int(of["owed"]),
            STATES[int(of["state"])],
            of["state_since_s"],
        )
        return ConnView(record, self._members.host(int(self.table["member"][row])))


class Arrivals(_Ends):
    """The receiving ends; `messages` of them have arrived."""

    def __init__(self, members: Members, pairs: Pairs) -> None:
        super().__init__(members, pairs, "receives", _receiving_key, messages=0)

    def messages(self, conn: ConnRecord) -> int | None:
        """How many messages of a connection its receiver has seen; None if it does not say."""
        row = self._rows.get((conn.comm, conn.peer, conn.source, conn.destination, conn.qp), -1)
        return int(self.table["messages"][row]) if row >= 0 and self.table["known"][row] else None

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        table, windows = batch.arrivals
        rows = self.numbers.rows(batch, table["end"], windows)
        which = np.flatnonzero(rows > UNKNOWN)
        own = (rows >= 0) & self._members.on_host(self.table["member"][rows], batch, windows)
        ok = own & (table["messages"] >= 0)
        which = validator.filter("foreign arrival", which, ok[which], batch.hosts, windows)
        self.table["messages"][rows[which]] = table["messages"][which]
        self.table["known"][rows[which]] = True
        self._note_sums(rows, table, which)


def _receiving_key(name: EndName) -> Hashable:
    return name.comm, name.rank, name.source, name.destination, name.qp


def _read(table: Rows, ends_s: Floats) -> Floats:
    """The numbers of connections (columns) when their windows end; counters have what the present state has lasted."""
    numbers = np.empty((len(_NUMBERS), len(table)))
    lasting = lasting_ns(table, ends_s)
    for column, name in zip(numbers, _NUMBERS, strict=True):
        if name in _SPENT:
            spending = table["state"] == STATES.index(_SPENT[name])
            column[:] = (table[_NS[name]] + np.where(spending, lasting, 0)) / 1e9
        elif name in _NS:
            column[:] = table[_NS[name]] / 1e9
        else:
            column[:] = table[name]
    return numbers


def _remove(rows: Index, free: list[int], comms: Collection[str]) -> list[int]:
    """Remove the keys of these communicators; return their rows, which are now also `free`."""
    ended = [rows.pop(key) for key in [key for key in rows if key[0] in comms]]
    free += ended
    return ended
