"""A job's operations: the newest record of every member, and those that not all members have finished yet."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.c4d.observe.batch import Batch, HostRows
from c4bench.c4d.observe.columns import Bools, Floats, Index, Ints, SortedIndex, Table, distinct, rounds
from c4bench.c4d.observe.members import Members
from c4bench.c4d.observe.record_validator import LATEST_S, RecordValidator
from c4bench.c4d.thresholds import MEMORY_OPS, SETTLE_OPS
from c4bench.model.telemetry import OpRecord
from c4bench.model.window import CallName, ranks_in

# Bits of an operation's sequence number: at a thousand a second a rank counts for thirty years.
_SEQ_BITS = 40
# A rank's clock and its agent's are the host's one clock; a reading may be a little younger than its window's end.
_AHEAD_S = 1.0
# Open operations of a communicator that are kept: with lost records some never end, and the oldest is dropped.
_OPS_KEPT = 128
# Where each member of a job calls as many different operations, sizes hardly come back: what is known is forgotten.
_ENTRIES_KEPT = 1 << 21
_KINDS_KEPT = 1 << 10

_UNSEEN = float("nan")
# What a record has beside its member, of a row in which none is kept.
_RECORD: dict[str, float | bytes] = {
    "seq": -1, "entered_s": 0.0, "started_s": 0.0, "finished_s": 0.0, "size_bytes": 0, "call": 0, "awaits": b""
}  # fmt: skip


class OpColumns(NamedTuple):
    """Records as columns, with the rows of their members and of the ranks that those are.

    `windows` are the windows that they are of, and `ends_s` when those ended. `kept` is the row that keeps a record
    until its operation has ended, or -1; an operation that is `evaluated` has ended before.
    """

    members: Ints
    ranks: Ints
    seq: Ints
    entered_s: Floats
    started_s: Floats
    finished_s: Floats
    size_bytes: Ints
    call: Ints
    awaits: NDArray[Any]
    windows: Ints
    ends_s: Floats
    kept: Ints
    evaluated: Bools

    def pick(self, which: Ints | Bools) -> "OpColumns":
        """Some of them."""
        return OpColumns._make(values[which] for values in self)


class OperationIntervals:
    """The newest entry into an operation, by member and by what is alike."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._sizes, self._alike, self._rows = SortedIndex(), SortedIndex(), SortedIndex()
        self._entries = Table(seq=-1, entered_s=0.0)

    def since_s(self, members: Ints, kinds: Ints, sizes: Ints, seq: Ints, entered_s: Floats, unbroken: Ints) -> Floats:
        """Seconds since the last one of the same kind and size of each operation; nan where unknown. No member twice.

        No record of a member was lost since the one that is `unbroken`.
        """
        rows, entries = self._rows_of(members, kinds, sizes), self._entries
        before, before_s = entries["seq"][rows], entries["entered_s"][rows]
        usable = (before >= 0) & (before >= unbroken) & (entered_s > before_s)
        entries["seq"][rows], entries["entered_s"][rows] = seq, entered_s
        return np.where(usable, entered_s - before_s, _UNSEEN)

    def forget(self, first: int, end: int) -> None:
        """Forget the members in these rows; others may have them later."""
        _, rows = self._rows.between(first << 32, end << 32)
        self._entries.clear(rows, "seq")

    def _rows_of(self, members: Ints, kinds: Ints, sizes: Ints) -> Ints:
        if len(self._alike) > _KINDS_KEPT or len(self._rows) > _ENTRIES_KEPT:
            self._clear()
        alike = self._alike.open(self._sizes.open(sizes) << 32 | kinds)
        rows = self._rows.open(members << 32 | alike)
        self._entries.add(len(self._rows) - self._entries.count)
        return rows


class Finished(NamedTuple):
    """Operations that all members have finished, of communicators (by number) of one size, those of each in order.

    Shape (operations, members): the members' ranks in the job, how long they were inside, after how much computing
    (nan: unseen), and since when (their own clocks).
    """

    comms: Ints
    ranks: Ints
    duration_s: Floats
    gap_s: Floats
    entered_s: Floats

    def pick(self, which: Ints | Bools) -> "Finished":
        """Some of them."""
        return Finished._make(values[which] for values in self)


class Operations:
    """Rows of `_newest` are members', see `Members`.

    An operation is open from its first record until all members have finished it; its members' records are kept in
    consecutive rows of `_kept` until then.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        # `done` is the last operation that a member has finished; since `unbroken` no record of it was lost.
        self._newest = Table(**_RECORD, done=-1, unbroken=0)
        self._evaluated = Table(seq=-1)
        # The first row of the records of each operation, by its communicator and its sequence number.
        self._open = SortedIndex()
        self._free: dict[int, list[int]] = {}
        self._kept = Table(**_RECORD, comm=0, known=False, touched=False, gap_s=_UNSEEN)
        self._intervals = OperationIntervals()
        self._calls = HostRows("calls", self._call)
        # What is called, by number, and the number of its kind.
        self._numbers, self._kind_numbers = Index(), Index()
        self._names: list[CallName] = []
        self._kinds: list[int] = []

    def make_room(self) -> None:
        """For members and communicators that are new."""
        self._newest.add(self._members.table.count - self._newest.count)
        self._evaluated.add(self._members.comms.count - self._evaluated.count)

    def remove_comm(self, number: int) -> None:
        """Forget a communicator's operations; another of its size may have its number and rows."""
        first, size = self._members.rows_of(number)
        self._end(size, self._open_of(number)[1])
        self._evaluated.clear(number)
        self._newest.clear(slice(first, first + size))
        self._intervals.forget(first, first + size)

    def settled(self) -> bool:
        """Whether some communicator is past its first operations, which set it up and take as long as they take."""
        return bool(self._newest.used("seq").max(initial=-1) >= SETTLE_OPS)

    def recorded(self) -> Bools:
        """Whether any member of each communicator, by its number, has recorded an operation."""
        first = self._members.comms.used("first")
        seqs = self._newest.used("seq")
        recorded: Bools = np.maximum.reduceat(seqs, first) >= 0 if len(first) else np.zeros(0, np.bool_)
        return recorded

    def newest(self, member: int) -> OpRecord | None:
        """The newest record of a member."""
        return self._record(self._newest, member, member) if self._newest["seq"][member] >= 0 else None

    def records_of(self, comm: int, seq: int) -> dict[int, OpRecord]:
        """The records of an operation of a communicator that not all members have completed, by member."""
        start = int(self._open.rows(np.asarray([comm << _SEQ_BITS | seq]))[0])
        if start < 0:
            return {}
        first, size = self._members.rows_of(comm)
        places = np.flatnonzero(self._kept["known"][start : start + size]).tolist()
        return {place: self._record(self._kept, start + place, first + place) for place in places}

    def uncompleted(self, comm: int, member: int) -> OpRecord | None:
        """The first operation that a member has entered and not completed; those of a communicator end in order."""
        newest = self._newest
        if newest["seq"][member] < 0 or newest["finished_s"][member] > 0.0:
            return None
        seqs, starts = self._open_of(comm)
        rows = starts + self._members.table["place"][member]
        entered = rows[(seqs > newest["done"][member]) & self._kept["known"][rows]]
        return self._record(self._kept, int(entered[0]), member) if len(entered) else self.newest(member)

    def _open_of(self, comm: int) -> tuple[Ints, Ints]:
        """Sequence numbers of the open operations of a communicator, ascending, and where their records begin."""
        keys, starts = self._open.between(comm << _SEQ_BITS, (comm + 1) << _SEQ_BITS)
        return keys - (comm << _SEQ_BITS), starts

    def _record(self, table: Table, row: int, member: int) -> OpRecord:
        """A record from its row in a table."""
        of = {name: table[name][row] for name in _RECORD}
        call: CallName = self._names[of["call"]]
        caller = self._members.caller(member)
        seq, size_bytes, awaits = int(of["seq"]), int(of["size_bytes"]), ranks_in(of["awaits"])
        times_s = float(of["entered_s"]), float(of["started_s"]), float(of["finished_s"])
        return OpRecord(*caller, seq, *call, size_bytes, *times_s, awaits)

    def ingest(self, batch: Batch, validator: RecordValidator) -> list[float]:
        """File a round of windows; return the latest times (s) between two operations alike."""
        ops = self._read(batch, validator)
        if not len(ops.seq):
            return []
        comms = self._members.table["comm"][ops.members]
        evaluated = ops.seq <= self._evaluated["seq"][comms]
        ops = ops._replace(kept=self._kept_at(ops, comms, ~evaluated), evaluated=evaluated)
        since_s, order = np.full(len(comms), _UNSEEN), np.lexsort((ops.seq, ops.entered_s))
        for turn in rounds(ops.ranks[order]):
            since_s[order[turn]] = self._file(ops.pick(order[turn]))
        return _in_order(ops, since_s)

    def _read(self, batch: Batch, validator: RecordValidator) -> OpColumns:
        """The operations that ranks of the windows' hosts have called, and whose times are in order."""
        table, windows = batch.ops
        members = self._members.callers.rows(batch, table["caller"], windows)
        which = self._members.own("foreign operation", members, members, batch, windows, validator)
        times_s = table["entered"] / 1e9, table["started"] / 1e9, table["finished"] / 1e9
        calls, ends_s = self._calls.rows(batch, table["call"], windows), batch.ends_s(windows)
        whole = (table["seq"] >= 0) & (table["seq"] < 1 << _SEQ_BITS) & (calls >= 0) & (table["size_bytes"] >= 0)
        whole &= _in_turn(*times_s, ends_s + _AHEAD_S)
        which = validator.filter("torn operation", which, whole[which], batch.hosts, windows)
        none, sizes, awaits = np.full(len(members), -1), table["size_bytes"], batch.awaits()
        ops = OpColumns(members, none, table["seq"], *times_s, sizes, calls, awaits, windows, ends_s, none, none > 0)
        ops = ops.pick(which)
        return ops._replace(ranks=self._members.rank_rows()[ops.members])

    def _call(self, name: CallName) -> int:
        """The number of what ranks call, which may be new."""
        number = self._numbers.open(name)
        if number == len(self._names):
            self._names.append(name)
            self._kinds.append(self._kind_numbers.open(name.kind))
        return number

    def _kept_at(self, ops: OpColumns, comms: Ints, todo: Bools) -> Ints:
        """Where records of the operations to do are kept: -1 for those that are too far behind, and for others."""
        keys = comms << _SEQ_BITS | ops.seq
        starts = np.where(todo, self._open.rows(keys), -1)
        if (lacking := todo & (starts < 0)).any():
            self._begin(distinct(keys[lacking]))
            starts = np.where(todo, self._open.rows(keys), -1)
        self._kept["touched"][starts[starts >= 0]] = True
        kept: Ints = np.where(starts < 0, -1, starts + self._members.table["place"][ops.members])
        return kept

    def _begin(self, keys: Ints) -> None:
        """Make room for the records of operations; of too many in a communicator the oldest end."""
        comms, starts = keys >> _SEQ_BITS, np.empty(len(keys), np.int64)
        sizes = self._members.comms["size"][comms]
        for size in distinct(sizes).tolist():
            which = sizes == size
            starts[which] = self._room(size, int(np.count_nonzero(which)))
        self._kept["comm"][starts], self._kept["seq"][starts] = comms, keys - (comms << _SEQ_BITS)
        self._open.add(keys, starts)
        comms = distinct(comms)
        for comm in comms[self._open.counts(comms << _SEQ_BITS, (comms + 1) << _SEQ_BITS) > _OPS_KEPT].tolist():
            self._end(self._members.rows_of(comm)[1], self._open_of(comm)[1][:-_OPS_KEPT])

    def _room(self, size: int, count: int) -> list[int]:
        """The first rows of room for so many operations of `size` members."""
        free = self._free.setdefault(size, [])
        if lacking := max(0, count - len(free)):
            first = self._kept.add(lacking * size)
            free += range(first, first + lacking * size, size)
        starts = free[-count:]
        del free[-count:]
        return starts

    def _end(self, size: int, starts: Ints) -> None:
        """Keep no records of operations of communicators of `size` any more."""
        self._open.remove(self._kept["comm"][starts] << _SEQ_BITS | self._kept["seq"][starts])
        rows = np.add.outer(starts, np.arange(size))
        # The rest is written with the next record.
        self._kept.clear(rows, "known", "touched", "gap_s", "finished_s")
        self._free.setdefault(size, []).extend(starts.tolist())

    def _file(self, ops: OpColumns) -> Floats:
        """File a record of each of these ranks: the time since the last one alike for each that is new, else nan."""
        newest, kept, ranks = self._newest, self._kept, self._members.ranks
        before = newest["seq"][ops.members]
        fresh = ~(ops.evaluated | ((ops.kept >= 0) & kept["known"][ops.kept]))
        event_s = np.minimum(np.maximum(ops.entered_s, ops.finished_s), ops.ends_s)
        until_s = ranks["event_s"][ops.ranks]
        ranks["event_s"][ops.ranks] = np.fmax(event_s, until_s)
        self._members.note_acts(ops.members, event_s)
        follows = (before >= 0) & (before == ops.seq - 1)
        computed = follows & (newest["finished_s"][ops.members] != 0.0)
        gap_s = np.where(computed, np.maximum(0.0, ops.entered_s - until_s), _UNSEEN)
        since_s = self._since_alike(ops, fresh, follows)
        open_, latest, done = ops.kept >= 0, ops.seq >= before, ops.finished_s > 0.0
        for name in _RECORD:
            values = getattr(ops, name)
            kept[name][ops.kept[open_]] = values[open_]
            newest[name][ops.members[latest]] = values[latest]
        kept["known"][ops.kept[open_]] = True
        kept["gap_s"][ops.kept[open_ & fresh]] = gap_s[open_ & fresh]
        newest["done"][ops.members[done]] = np.maximum(newest["done"][ops.members[done]], ops.seq[done])
        return since_s

    def _since_alike(self, ops: OpColumns, fresh: Bools, follows: Bools) -> Floats:
        """Times since the last operation of the same member, kind and size, unless records between were lost."""
        broken = fresh & ~follows
        self._newest["unbroken"][ops.members[broken]] = ops.seq[broken]
        new, since_s = ops.pick(fresh), np.full(len(fresh), _UNSEEN)
        kinds, unbroken = np.asarray(self._kinds)[new.call], self._newest["unbroken"][new.members]
        since_s[fresh] = self._intervals.since_s(new.members, kinds, new.size_bytes, new.seq, new.entered_s, unbroken)
        return since_s

    def finished(self) -> list[Finished]:
        """Operations that every member has finished, each once; of communicators of each size together."""
        starts = np.flatnonzero(self._kept.used("touched"))
        self._kept["touched"][starts] = False
        sizes = self._members.comms["size"][self._kept["comm"][starts]]
        return [self._finished(size, starts[sizes == size]) for size in distinct(sizes).tolist()]

    def _finished(self, size: int, starts: Ints) -> Finished:
        kept, places = self._kept, np.arange(size)
        starts = starts[(kept["finished_s"][np.add.outer(starts, places)] > 0.0).all(axis=1)]
        starts = starts[np.lexsort((kept["seq"][starts], kept["comm"][starts]))]
        rows, comms = np.add.outer(starts, places), kept["comm"][starts]
        entered_s, gap_s = kept["entered_s"][rows], kept["gap_s"][rows]
        inside_s = kept["finished_s"][rows] - entered_s
        np.maximum.at(self._evaluated["seq"], comms, kept["seq"][starts])
        self._end(size, starts)
        members = np.add.outer(self._members.comms["first"][comms], places)
        return Finished(comms, self._members.rank_of(members), inside_s, gap_s, entered_s)


def _in_turn(entered_s: Floats, started_s: Floats, finished_s: Floats, until_s: Floats) -> Bools:
    """Whether a clock can show times of operations, and they are in order (0: not yet) and no later than `until_s`."""
    latest_s = np.maximum(np.maximum(entered_s, started_s), finished_s)
    known = (np.abs(entered_s) < LATEST_S) & (latest_s < LATEST_S) & (latest_s <= until_s)
    started = (started_s == 0.0) | (started_s >= entered_s)
    finished = (finished_s == 0.0) | ((finished_s >= entered_s) & (finished_s >= started_s))
    in_turn: Bools = known & started & finished
    return in_turn


def _in_order(ops: OpColumns, since_s: Floats) -> list[float]:
    """The latest times found, in the order of windows and, in each, of operations."""
    usable = np.flatnonzero(~np.isnan(since_s))
    if len(usable) > MEMORY_OPS:
        windows = ops.windows[usable]
        usable = usable[windows >= np.partition(windows, -MEMORY_OPS)[-MEMORY_OPS]]
    order = np.lexsort([column[usable] for column in (ops.ranks, ops.seq, ops.entered_s, ops.windows)])
    found: list[float] = since_s[usable[order]].tolist()
    return found
