"""A job's connections: the newest numbers of each, of both its ends, as columns."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from c4bench.attribution.weigh import Cell
from c4bench.c4d.observe.batch import FOREIGN, Batch, HostRows, Layer
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import NEVER, Floats, Index, Ints, Table, rounds
from c4bench.c4d.observe.members import Members
from c4bench.c4d.observe.record_validator import LATEST_S, RecordValidator
from c4bench.model.telemetry import ConnRecord
from c4bench.model.window import STATES, EndName
from c4bench.model.window_columns import Rows, lasting_ns

# Seconds that count up, each in a state.
_SPENT = {"wait_credit_s": "credit", "wait_data_s": "data", "transfer_s": "transfer"}
# All numbers of a connection: cumulative counters, times (s), and what is so now.
_NUMBERS = (
    *("messages", "size_bytes", *_SPENT, "shared_s"),
    *("last_progress_s", "state_since_s"),
    *("outstanding", "owed", "source_port", "state"),
)
_LAST_PROGRESS, _PORT, _STATE = map(_NUMBERS.index, ("last_progress_s", "source_port", "state"))
_COUNTERS = slice(_LAST_PROGRESS)
_IN_STATES = slice(_NUMBERS.index(next(iter(_SPENT))), _NUMBERS.index("shared_s"))
# Seconds (by counter) summed in another order may differ in the last bits; messages and bytes may not.
_ROUNDING = np.array([[0.0], [0.0], [1e-9], [1e-9], [1e-9], [1e-9]])


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
    """A row for the two ends of each connection, by its communicator, source, destination and QP of the sending end."""

    def __init__(self) -> None:
        self.rows = Index()

    def remove(self, comms: Collection[str]) -> list[int]:
        """Forget the connections of these communicators; return their rows."""
        return self.rows.remove(lambda key: key[0] in comms)


class _Ends:
    """One end of each connection, a row each in `table`. A row that another one has had before has another `life`."""

    def __init__(self, members: Members, pairs: Pairs, sort: str, *together: str, **blanks: float) -> None:
        self.table = Table(
            *together, member=0, name=None, pair=0, known=False, life=0, count=0, sum=0, new=False, **blanks
        )
        self._members = members
        self._pairs = pairs
        self._rows = Index()
        self.numbers = HostRows(sort, self._open)

    def remove(self, comms: Collection[str]) -> list[int]:
        """Forget the ends in these communicators; return their rows."""
        rows = self._rows.remove(lambda key: key[0] in comms)
        self.table.clear(rows, "name", "known", "new")
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

    def _own(self, reason: str, layer: Layer, batch: Batch, validator: RecordValidator) -> tuple[Ints, Ints]:
        """The row of the end of each record, and which records' are known and on the hosts that wrote them."""
        rows = self.numbers.rows(batch, layer.table["end"], layer.windows)
        return rows, self._members.own(reason, rows, self.table["member"][rows], batch, layer.windows, validator)

    def _open(self, name: EndName) -> int:
        """The row of an end between two members; it is known from its first whole record on."""
        key, member = self._key(name), self._members.row(name.comm, name.rank)
        if key not in self._rows:
            if member < 0 or self._members.row(name.comm, name.peer) < 0:
                return min(member, FOREIGN)
            row = self._rows.open(key)
            self.table.add(int(row == self.table.count))
            self.table["member"][row], self.table["name"][row] = member, name
            self.table["pair"][row] = self._pairs.rows.open((name.comm, name.source, name.destination, name.qp))
        return self._rows[key]

    def _key(self, name: EndName) -> tuple[str | int, ...]:
        """What tells an end from others; its communicator comes first."""
        return name


class Connections(_Ends, Mapping[EndName, ConnView]):
    """The sending ends; `table` has the newest numbers of each, and `cells` the cell it is in, or () if none is known.

    `moves` is another number whenever a connection is new, has ended, or has been moved to another cell.
    """

    def __init__(self, members: Members, pairs: Pairs) -> None:
        super().__init__(members, pairs, "sends", *_NUMBERS, **dict.fromkeys(_NUMBERS, NEVER))
        self.cells: list[Cell] = []
        self.moves = 0

    def __getitem__(self, key: EndName) -> ConnView:
        row = self._rows[key]
        host = self._members.table["host_name"][self.table["member"][row]]
        name: EndName = self.table["name"][row]
        numbers: list[float] = self.table.block[:, row].tolist()
        times_s, (outstanding, owed, port, state) = numbers[2:8], map(int, numbers[8:])
        sent = port, int(numbers[0]), int(numbers[1])
        credit_s, data_s, transfer_s, shared_s, progress_s, since_s = times_s
        spent_s = credit_s, data_s, transfer_s, shared_s
        record = ConnRecord(*name, *sent, *spent_s, progress_s, outstanding, owed, STATES[state], since_s)
        return ConnView(record, host)

    def __iter__(self) -> Iterator[EndName]:
        return iter(self.table["name"][self.known()].tolist())

    def __len__(self) -> int:
        return len(self.known())

    def known(self) -> Ints:
        """The rows of connections of which a record is known."""
        return np.flatnonzero(self.table.used("known"))

    def remove(self, comms: Collection[str]) -> list[int]:
        """Forget the connections of these communicators; return their rows."""
        rows = super().remove(comms)
        self.table.clear(rows, *_NUMBERS)
        for row in rows:
            self.cells[row] = ()
        self.moves += 1
        return rows

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        table, windows = batch.conns
        rows, which = self._own("foreign connection", batch.conns, batch, validator)
        ends_s = batch.ends_s(windows)
        numbers = _read(table, ends_s)
        valid = (np.abs(numbers[_LAST_PROGRESS]) < LATEST_S) & (numbers[_STATE] < len(STATES))
        valid &= (numbers[_COUNTERS] >= 0).all(axis=0)
        which = validator.filter("torn connection", which, valid[which], batch.hosts, windows)
        for turn in rounds(rows[which]):
            fresh = which[turn]
            now, before = numbers.take(fresh, axis=1), self.table.block.take(rows[fresh], axis=1)
            # A state that was taken to last until its window ended may have ended before.
            np.maximum(now[_IN_STATES], before[_IN_STATES], out=now[_IN_STATES])
            grown = (now[_COUNTERS] >= before[_COUNTERS] - _ROUNDING).all(axis=0)
            validator.filter("torn connection", fresh, grown, batch.hosts, windows)
            moved = grown & (now != before).any(axis=0)
            put = fresh[moved]
            self.table.block[:, rows[put]] = now[:, moved]
            self.table["known"][rows[put]] = True
            self._note_sums(rows, table, fresh[grown])
            self._set_cells(rows[fresh[moved & (now[_PORT] != before[_PORT])]])
            members, acted_s = self.table["member"][rows[put]], np.minimum(numbers[_LAST_PROGRESS][put], ends_s[put])
            self._members.note_acts(members, acted_s)

    def _set_cells(self, rows: Ints) -> None:
        """Set the cells of connections that are new or have moved to another path."""
        self.moves += bool(len(rows))
        self.cells += [()] * (self.table.count - len(self.cells))
        for row in rows.tolist():
            name = self.table["name"][row]
            self.cells[row] = (name.source, name.destination, str(int(self.table["source_port"][row])))


class Arrivals(_Ends):
    """The receiving ends; `messages` of them have arrived."""

    def __init__(self, members: Members, pairs: Pairs) -> None:
        super().__init__(members, pairs, "receives", messages=0)

    def messages(self, conn: ConnRecord) -> int | None:
        """How many messages of a connection its receiver has seen; None if it does not say."""
        row = self._rows.get((conn.comm, conn.peer, conn.source, conn.destination, conn.qp), -1)
        return int(self.table["messages"][row]) if row >= 0 and self.table["known"][row] else None

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        table, windows = batch.arrivals
        rows, which = self._own("foreign arrival", batch.arrivals, batch, validator)
        counted = table["messages"] >= 0
        which = validator.filter("foreign arrival", which, counted[which], batch.hosts, windows)
        self.table["messages"][rows[which]] = table["messages"][which]
        self.table["known"][rows[which]] = True
        self._note_sums(rows, table, which)

    def _key(self, name: EndName) -> tuple[str | int, ...]:
        return name.comm, name.rank, name.source, name.destination, name.qp


def _read(table: Rows, ends_s: Floats) -> Floats:
    """The numbers of connections (columns) when their windows end; counters have what the present state has lasted."""
    numbers = np.empty((len(_NUMBERS), len(table)))
    lasting = lasting_ns(table, ends_s)
    for column, name in zip(numbers, _NUMBERS, strict=True):
        whole = table[name.removesuffix("_s")]
        if name in _SPENT:
            whole = whole + np.where(table["state"] == STATES.index(_SPENT[name]), lasting, 0)
        column[:] = whole / 1e9 if name.endswith("_s") else whole
    return numbers
