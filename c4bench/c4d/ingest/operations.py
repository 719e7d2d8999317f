"""A job's operations: the newest record of every member, and those that not all members have finished yet."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.c4d.columns import Bools, Floats, Ints, Runs, Table, distinct
from c4bench.c4d.ingest.batch import Batch
from c4bench.c4d.ingest.members import Members
from c4bench.c4d.ingest.open_operations import OpenOperations
from c4bench.c4d.ingest.operation_intervals import OperationIntervals
from c4bench.c4d.ingest.operation_rows import BLANK, FIELDS, OpColumns, OperationRows
from c4bench.c4d.ingest.record_validator import RecordValidator
from c4bench.model.telemetry import OpRecord

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
