"""A job's operations: the newest record of every member, and those that not all members have finished yet."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.c4d.columns import Bools, Floats, Index, Ints, Runs, Table, distinct
from c4bench.c4d.ingest.batch import UNKNOWN, Batch, HostRows
from c4bench.c4d.ingest.members import Members
from c4bench.c4d.ingest.record_validator import SEQ_BITS, RecordValidator, operation_times_ordered
from c4bench.model.telemetry import OpRecord
from c4bench.model.window import CallName, ranks_in

# Open operations of a communicator that are kept: with lost records some never end, and the oldest is dropped.
_OPS_KEPT = 128
_SEQ = (1 << SEQ_BITS) - 1


class OpenRows(NamedTuple):
    """Sequence numbers of operations of one communicator, ascending, and the first row of the records of each."""

    seqs: Ints
    starts: Ints


class OpenOperations:
    """The first row of the records of each operation, by the number of its communicator and its sequence number."""

    def __init__(self) -> None:
        # Both numbers in one, ascending.
        self._keys: Ints = np.empty(0, np.int64)
        self._starts: Ints = np.empty(0, np.int64)

    def starts(self, comms: Ints, seqs: Ints) -> Ints:
        """The first row of each of these operations, -1 for one that is not open."""
        if not len(self._keys):
            return np.full(len(comms), -1)
        keys = _key(comms, seqs)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._starts[at], -1)

    def of(self, comm: int) -> OpenRows:
        """The open operations of a communicator."""
        first, end = np.searchsorted(self._keys, [comm << SEQ_BITS, (comm + 1) << SEQ_BITS]).tolist()
        return OpenRows(self._keys[first:end] & _SEQ, self._starts[first:end])

    def missing(self, comms: Ints, seqs: Ints) -> tuple[Ints, Ints]:
        """Those of these operations that are not open, each once."""
        keys = distinct(_key(comms, seqs)[self.starts(comms, seqs) < 0])
        return keys >> SEQ_BITS, keys & _SEQ

    def add(self, comms: Ints, seqs: Ints, starts: Ints) -> None:
        """Add operations that are not open yet."""
        keys = np.concatenate([self._keys, _key(comms, seqs)])
        order = np.argsort(keys, kind="stable")
        self._keys, self._starts = keys[order], np.concatenate([self._starts, starts])[order]

    def remove(self, comms: Ints, seqs: Ints) -> None:
        """Remove operations that are open."""
        at = np.searchsorted(self._keys, _key(comms, seqs))
        self._keys, self._starts = np.delete(self._keys, at), np.delete(self._starts, at)

    def surplus(self, comms: Ints) -> list[Ints]:
        """The first rows of the oldest operations of each of these communicators that has too many open."""
        comms = distinct(comms)
        firsts, ends = np.searchsorted(self._keys, [comms << SEQ_BITS, (comms + 1) << SEQ_BITS])
        over = np.flatnonzero(ends - firsts > _OPS_KEPT)
        spans = zip(firsts[over].tolist(), ends[over].tolist(), strict=True)
        return [self._starts[first : end - _OPS_KEPT] for first, end in spans]


def _key(comms: Ints, seqs: Ints) -> Ints:
    keys: Ints = (comms << SEQ_BITS) | seqs
    return keys


_NO_OPERATION = -1
# Bits of a member's row in a number that also holds the operation's kind and size.
_MEMBER_BITS = 32
# With more, sizes hardly come back: what is known is forgotten, and known again after two operations alike.
_KINDS_KEPT = 1024
_ENTRIES_KEPT = 1 << 21


class OperationIntervals:
    """The newest entry into an operation, by member and by what is alike."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._kinds = Index()
        self._rows = Index()
        self._of_member: dict[int, list[int]] = {}
        self._entries = Table(seq=_NO_OPERATION, entered_s=0.0)
        # By member: what its operation last looked up was like, and its row in `_entries`.
        self._latest = Table(kind=-1, size=0, row=-1)

    def since_s(self, members: Ints, alike: tuple[Ints, Ints], numbers: tuple[Ints, Floats, Floats]) -> Floats:
        """Seconds since the last one alike of each of these operations, those of a member in order; nan where unknown.

        Those of one kind (a number) and size are `alike`. `numbers` are their sequence numbers, their times of entry
        (s), and since which sequence number no record of their members was lost.
        """
        seq, entered_s, unbroken = numbers
        rows = self._rows_of(members, *alike)
        runs, entries = Runs(rows), self._entries
        before, before_s = runs.before(seq, entries["seq"][rows]), runs.before(entered_s, entries["entered_s"][rows])
        usable = (before >= 0) & (before >= unbroken) & (entered_s > before_s)
        entries["seq"][rows[runs.last]], entries["entered_s"][rows[runs.last]] = seq[runs.last], entered_s[runs.last]
        return np.where(usable, entered_s - before_s, np.nan)

    def forget(self, members: Iterable[int]) -> None:
        """Forget members; others may have their rows later."""
        for member in members:
            for key in self._of_member.get(member, ()):
                self._entries["seq"][self._rows[key]] = _NO_OPERATION

    def __len__(self) -> int:
        return self._entries.count

    def _rows_of(self, members: Ints, kinds: Ints, sizes: Ints) -> Ints:
        if len(self._kinds) > _KINDS_KEPT or self._entries.count > _ENTRIES_KEPT:
            self._clear()
        latest = self._latest
        latest.add(max(0, int(members.max(initial=-1)) + 1 - latest.count))
        alike = (latest["kind"][members] == kinds) & (latest["size"][members] == sizes)
        rows: Ints = np.where(alike, latest["row"][members], -1)
        others = np.flatnonzero(~alike)
        if len(others):
            keys = zip(members[others].tolist(), kinds[others].tolist(), sizes[others].tolist(), strict=True)
            rows[others] = [self._row(*key) for key in keys]
            for name, values in (("kind", kinds), ("size", sizes), ("row", rows)):
                latest[name][members[others]] = values[others]
        return rows

    def _row(self, member: int, kind: int, size: int) -> int:
        number = self._kinds.setdefault((kind, size), len(self._kinds))
        key = member + (number << _MEMBER_BITS)
        if key not in self._rows:
            self._rows[key] = self._entries.add()
            self._of_member.setdefault(member, []).append(key)
        return self._rows[key]


# What a record has beside its member, and a record that is blank.
FIELDS = ("seq", "entered_s", "started_s", "finished_s", "size_bytes", "call", "awaits")
BLANK: dict[str, float | bytes] = {
    "seq": 0, "entered_s": 0.0, "started_s": 0.0, "finished_s": 0.0, "size_bytes": 0, "call": 0, "awaits": b""
}  # fmt: skip


class OpColumns(NamedTuple):
    """Records as columns: the rows of their members and of the ranks that those are.

    `kept` is where they are kept, or -1; `windows` are the windows that they are of, and `ends_s` when those ended.
    """

    members: Ints
    ranks: Ints
    kept: Ints
    seq: Ints
    entered_s: Floats
    started_s: Floats
    finished_s: Floats
    size_bytes: Ints
    call: Ints
    awaits: NDArray[Any]
    windows: Ints
    ends_s: Floats
    evaluated: Bools

    def pick(self, which: Ints | Bools) -> "OpColumns":
        """Some of them."""
        if which.dtype == np.bool_ and which.all():
            return self
        return OpColumns._make(values[which] for values in self)


class OperationRows:
    """Reads operations of a job, and knows what its ranks call, by number."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._numbers = HostRows("calls", self._call)
        self._calls: dict[CallName, int] = {}
        self._names: list[CallName] = []
        # By call: the first call of its kind.
        self._kinds: list[int] = []

    def read(self, batch: Batch, validator: RecordValidator) -> OpColumns:
        """The operations that ranks of the windows' hosts have called, and whose times are in order."""
        table, windows = batch.ops
        members = self._members.callers.rows(batch, table["caller"], windows)
        which = np.flatnonzero(members > UNKNOWN)
        own = (members >= 0) & self._members.on_host(members, batch, windows)
        which = validator.filter("foreign operation", which, own[which], batch.hosts, windows)
        numbers = {f"{name}_s": table[name] / 1e9 for name in ("entered", "started", "finished")}
        calls, ends_s = self._numbers.rows(batch, table["call"], windows), batch.ends_s(windows)
        whole = operation_times_ordered(numbers | {"seq": table["seq"]}, ends_s)
        whole &= (calls >= 0) & (table["size_bytes"] >= 0)
        which = validator.filter("torn operation", which, whole[which], batch.hosts, windows)
        return OpColumns(
            members[which],
            self._members.rank_rows()[members[which]],
            np.full(len(which), -1),
            table["seq"][which],
            numbers["entered_s"][which],
            numbers["started_s"][which],
            numbers["finished_s"][which],
            table["size_bytes"][which],
            calls[which],
            batch.awaits()[which],
            windows[which],
            ends_s[which],
            np.zeros(len(which), np.bool_),
        )

    def record(self, table: Table, row: int, caller: tuple[str, int]) -> OpRecord:
        """The record in a row of a table that has `FIELDS`."""
        of = {name: table[name][row] for name in FIELDS}
        called: CallName = self._names[of["call"]]
        times_s = float(of["entered_s"]), float(of["started_s"]), float(of["finished_s"])
        return OpRecord(*caller, int(of["seq"]), *called, int(of["size_bytes"]), *times_s, ranks_in(of["awaits"]))

    def kinds(self, calls: Ints) -> Ints:
        """A number for the kind of each of these calls."""
        return np.asarray(self._kinds, np.int64)[calls]

    def _call(self, name: CallName) -> int:
        if name not in self._calls:
            number = self._calls[name] = len(self._names)
            self._kinds.append(next((n for n, known in enumerate(self._names) if known.kind == name.kind), number))
            self._names.append(name)
        return self._calls[name]


# The number of intervals between operations from which a job's period is taken.
INTERVALS_KEPT = 512
# In place of a sequence number, and of a time.
_NONE = -1.0
_UNSEEN = float("nan")
# Rows in which no record is kept.
_NEWEST = BLANK | {"seq": -1, "done": _NONE, "unbroken": 0.0}
_KEPT = BLANK | {"known": False, "touched": False, "gap_s": _UNSEEN}
# What is blank again once an operation has ended; the rest is written with the next record.
_ENDED = ("known", "touched", "gap_s", "finished_s")


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
        if which.dtype == np.bool_:
            if which.all():
                return self
            which = np.flatnonzero(which)
        return Finished._make(values.take(which, axis=0) for values in self)


class Operations:
    """Rows of `_newest` are members', see `Members`.

    An operation is open from its first record until all members have finished it; its members' records are kept in
    consecutive rows of `_kept` until then.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._newest = Table(**_NEWEST)
        self._comms = Table(first=0, size=0, evaluated=-1)
        self._names: list[str] = []
        self._open = OpenOperations()
        self._free: dict[int, list[int]] = {}
        self._kept = Table(comm=0, **_KEPT)
        self._intervals = OperationIntervals()
        self._rows = OperationRows(members)

    def add_comm(self, number: int, name: str, first: int, size: int) -> None:
        """A communicator, and its members' rows: the next ones, or those of one that was removed."""
        if number < self._comms.count:
            self._names[number] = name
            return
        self._comms.add()
        self._comms["first"][number], self._comms["size"][number] = first, size
        self._names.append(name)
        self._newest.add(size)

    def remove_comm(self, number: int) -> None:
        """Forget a communicator's operations; another of its size may have its number and rows."""
        size, first = int(self._comms["size"][number]), int(self._comms["first"][number])
        self._end(size, self._open.of(number).starts)
        self._comms["evaluated"][number] = -1
        for name, blank in _NEWEST.items():
            self._newest[name][first : first + size] = blank
        self._intervals.forget(range(first, first + size))

    def newest(self, member: int) -> OpRecord | None:
        """The newest record of a member."""
        return self._record(self._newest, member, member) if self._newest["seq"][member] >= 0 else None

    def records_of(self, comm: int, seq: int) -> dict[int, OpRecord]:
        """The records of an operation of a communicator that not all members have completed, by member."""
        start = int(self._open.starts(np.asarray([comm]), np.asarray([seq]))[0])
        if start < 0:
            return {}
        first, known = int(self._comms["first"][comm]), self._kept["known"]
        places = (place for place in range(self._comms["size"][comm]) if known[start + place])
        return {place: self._record(self._kept, start + place, first + place) for place in places}

    def uncompleted(self, comm: int, member: int) -> OpRecord | None:
        """The first operation that a member has entered and not completed; those of a communicator end in order."""
        newest = self._newest
        if newest["seq"][member] < 0 or newest["finished_s"][member] > 0.0:
            return None
        seqs, starts = self._open.of(comm)
        rows = starts + (member - self._comms["first"][comm])
        entered = rows[(seqs > newest["done"][member]) & self._kept["known"][rows]]
        return self._record(self._kept, int(entered[0]), member) if len(entered) else self.newest(member)

    def _record(self, table: Table, row: int, member: int) -> OpRecord:
        """A record from its row in a table."""
        comm, place = (int(self._members.table[name][member]) for name in ("comm", "place"))
        return self._rows.record(table, row, (self._names[comm], place))

    def ingest(self, batch: Batch, validator: RecordValidator) -> list[float]:
        """File a round of windows; return the latest times (s) between two operations alike."""
        ops = self._rows.read(batch, validator)
        comms = self._members.table["comm"][ops.members]
        evaluated = ops.seq <= self._comms["evaluated"][comms]
        ops = ops._replace(evaluated=evaluated, kept=self._kept_at(ops, comms, evaluated))
        ops = ops.pick(_by_rank(ops))
        return _in_order(ops, self._file(ops)) if len(ops.seq) else []

    def _kept_at(self, ops: OpColumns, comms: Ints, evaluated: Bools) -> Ints:
        """Where records are kept: -1 for operations that are evaluated, or are too far behind."""
        todo = np.flatnonzero(~evaluated)
        starts = np.full(len(comms), -1)
        starts[todo] = self._open.starts(comms[todo], ops.seq[todo])
        if (starts[todo] < 0).any():
            self._begin(*self._open.missing(comms[todo], ops.seq[todo]))
            starts[todo] = self._open.starts(comms[todo], ops.seq[todo])
        self._kept["touched"][starts[starts >= 0]] = True
        kept: Ints = np.where(starts < 0, -1, starts + self._members.table["place"][ops.members])
        return kept

    def _begin(self, comms: Ints, seqs: Ints) -> None:
        """Make room for the records of operations."""
        sizes, starts = self._comms["size"][comms], np.empty(len(comms), np.int64)
        for size in distinct(sizes).tolist():
            which = sizes == size
            starts[which] = self._room(size, int(np.count_nonzero(which)))
        self._kept["comm"][starts], self._kept["seq"][starts] = comms, seqs
        self._open.add(comms, seqs, starts)
        for oldest in self._open.surplus(comms):
            self._end(int(self._comms["size"][self._kept["comm"][oldest[0]]]), oldest)

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
        self._open.remove(self._kept["comm"][starts], self._kept["seq"][starts])
        rows = np.add.outer(starts, np.arange(size))
        for name in _ENDED:
            self._kept[name][rows] = _KEPT[name]
        self._free.setdefault(size, []).extend(starts.tolist())

    def _file(self, ops: OpColumns) -> Floats:
        """File records, those of a rank in order: the time since the last one alike for each that is new, else nan."""
        newest, ranks = self._newest, self._members.ranks
        of_member, of_rank = Runs(ops.members), Runs(ops.ranks)
        highest = np.maximum(of_member.highest(ops.seq), newest["seq"][ops.members])
        before = of_member.before(highest, newest["seq"][ops.members])
        latest = of_member.latest(ops.seq >= before)
        # The record that was a member's newest before each: one of these, or -1.
        known = of_member.before(latest, np.full(len(latest), -1))
        fresh = self._fresh(ops)
        moved = fresh | self._changed(ops, before, known)
        ranks["moved_s"][ops.ranks[moved]] = ops.ends_s[moved]
        event_s = np.minimum(np.maximum(ops.entered_s, ops.finished_s), ops.ends_s)
        until_s = np.fmax(of_rank.highest(event_s), ranks["event_s"][ops.ranks])
        computed_s = np.maximum(0.0, ops.entered_s - of_rank.before(until_s, ranks["event_s"][ops.ranks]))
        follows = (before >= 0) & (before == ops.seq - 1)
        left = self._known(ops, "finished_s", known) != 0.0
        self._keep(ops, np.where(follows & left, computed_s, _UNSEEN), fresh)
        since_s = self._since_alike(ops, of_member, fresh, follows)
        later = latest[of_member.last]
        later = later[later >= 0]
        for name in FIELDS:
            newest[name][ops.members[later]] = getattr(ops, name)[later]
        done = ops.finished_s > 0.0
        np.maximum.at(newest["done"], ops.members[done], ops.seq[done].astype(np.float64))
        self._members.note_acts(ops.members, event_s)
        ranks["event_s"][ops.ranks[of_rank.last]] = until_s[of_rank.last]
        return since_s

    def _fresh(self, ops: OpColumns) -> Bools:
        """Which records are the first of their operation and member."""
        kept, order = self._kept, np.arange(len(ops.kept))
        first = np.empty(kept.count + 1, np.int64)
        first[ops.kept[::-1]] = order[::-1]
        known = (ops.kept >= 0) & (kept["known"][ops.kept] | (first[ops.kept] != order))
        fresh: Bools = ~(ops.evaluated | known)
        return fresh

    def _known(self, ops: OpColumns, name: str, known: Ints) -> NDArray[Any]:
        """A number of the record that was a member's newest before each record."""
        return np.where(known >= 0, getattr(ops, name)[known], self._newest[name][ops.members])

    def _changed(self, ops: OpColumns, before: Ints, known: Ints) -> Bools:
        """Whether records differ from the newest of their members."""
        changed: Bools = ops.seq != before
        again = np.flatnonzero(~changed)
        same, known = ops.pick(again), known[again]
        for name in FIELDS[1:]:
            if (inside := known >= 0).any():
                newest = np.where(inside, getattr(ops, name)[known], self._newest[name][same.members])
            else:
                newest = self._newest[name][same.members]
            changed[again] |= getattr(same, name) != newest
        return changed

    def _keep(self, ops: OpColumns, gap_s: Floats, fresh: Bools) -> None:
        open_ = (ops.kept >= 0) & ~ops.evaluated
        rows = ops.kept[open_]
        for name in FIELDS:
            self._kept[name][rows] = getattr(ops, name)[open_]
        self._kept["known"][rows] = True
        first = open_ & fresh
        self._kept["gap_s"][ops.kept[first]] = gap_s[first]

    def _since_alike(self, ops: OpColumns, of_member: Runs, fresh: Bools, follows: Bools) -> Floats:
        """Times since the last operation of the same member, kind and size, unless records between were lost."""
        broken = of_member.latest(fresh & ~follows)
        unbroken = np.where(broken >= 0, ops.seq[broken], self._newest["unbroken"][ops.members])
        self._newest["unbroken"][ops.members[of_member.last]] = unbroken[of_member.last]
        new, since_s = ops.pick(fresh), np.full(len(fresh), _UNSEEN)
        alike = self._rows.kinds(new.call), new.size_bytes
        since_s[fresh] = self._intervals.since_s(new.members, alike, (new.seq, new.entered_s, unbroken[fresh]))
        return since_s

    def finished(self) -> list[Finished]:
        """Operations that every member has finished, each once; of communicators of each size together."""
        starts = np.flatnonzero(self._kept.used("touched"))
        self._kept["touched"][starts] = False
        sizes = self._comms["size"][self._kept["comm"][starts]]
        return [self._finished(size, starts[sizes == size]) for size in distinct(sizes).tolist()]

    def _finished(self, size: int, starts: Ints) -> Finished:
        rows = np.add.outer(starts, np.arange(size))
        whole = (self._kept["finished_s"][rows] > 0.0).all(axis=1)
        starts, rows = starts[whole], rows[whole]
        order = np.lexsort((self._kept["seq"][starts], self._kept["comm"][starts]))
        starts, rows = starts[order], rows[order]
        comms, seqs = self._kept["comm"][starts], self._kept["seq"][starts]
        entered_s, gap_s = self._kept["entered_s"][rows], self._kept["gap_s"][rows]
        inside_s = self._kept["finished_s"][rows] - entered_s
        np.maximum.at(self._comms["evaluated"], comms, seqs)
        self._end(size, starts)
        members = np.add.outer(self._comms["first"][comms], np.arange(size))
        return Finished(comms, self._members.rank_of(members), inside_s, gap_s, entered_s)


def _by_rank(ops: OpColumns) -> Ints:
    """The records of one rank after those of another, each in order: they often are."""
    order = np.argsort(ops.ranks, kind="stable")
    ranks, entered_s, seq = ops.ranks[order], ops.entered_s[order], ops.seq[order]
    follows = (entered_s[1:] > entered_s[:-1]) | ((entered_s[1:] == entered_s[:-1]) & (seq[1:] >= seq[:-1]))
    if (follows | (ranks[1:] > ranks[:-1])).all():
        return order
    return np.lexsort((ops.seq, ops.entered_s, ops.ranks))


def _in_order(ops: OpColumns, since_s: Floats) -> list[float]:
    """The latest times found, in the order of windows and, in each, of operations."""
    usable = np.flatnonzero(~np.isnan(since_s))
    if len(usable) > INTERVALS_KEPT:
        windows = ops.windows[usable]
        usable = usable[windows >= np.partition(windows, -INTERVALS_KEPT)[-INTERVALS_KEPT]]
    order = np.lexsort((ops.seq[usable], ops.entered_s[usable], ops.windows[usable]))
    return list(since_s[usable[order]].tolist())
