"""A job's operations: the newest record of every member, and those that not all members have finished yet."""

from typing import NamedTuple

import numpy as np

from c4bench.c4d.columns import Bools, Floats, Index, Ints, Table, rounds
from c4bench.c4d.ingest.batch import Batch
from c4bench.c4d.ingest.members import Members
from c4bench.c4d.ingest.operation_intervals import OperationIntervals
from c4bench.c4d.ingest.operation_rows import BLANK, FIELDS, OpColumns, OperationRows
from c4bench.c4d.ingest.record_validator import RecordValidator
from c4bench.model.telemetry import OpRecord

# The number of intervals between operations from which a job's period is taken.
INTERVALS_KEPT = 512
# Open operations of a communicator that are kept: with lost records some never end, and the oldest is dropped.
_OPS_KEPT = 128
# In place of a sequence number, and of a time.
_NONE = -1.0
_UNSEEN = float("nan")
# Rows in which no record is kept.
_NEWEST = BLANK | {"seq": -1, "done": _NONE, "unbroken": 0.0}
_KEPT = BLANK | {"known": False, "touched": False, "gap_s": _UNSEEN}


class Finished(NamedTuple):
    """Operations that all members have finished, one of each communicator (by its number), all of one size.

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
        self._newest = Table(**_NEWEST)
        # Of each communicator also the newest operation, and where it is kept.
        self._comms = Table(first=0, size=0, evaluated=-1, seq=-1, start=0)
        self._names: list[str] = []
        self._open: list[dict[int, int]] = []
        self._starts = Index()
        self._operation: dict[int, tuple[int, int]] = {}
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
        self._open.append({})

    def remove_comm(self, number: int) -> None:
        """Forget a communicator's operations; another of its size may have its number and rows."""
        size, first = int(self._comms["size"][number]), int(self._comms["first"][number])
        self._end(size, list(self._open[number].values()))
        self._comms["evaluated"][number] = self._comms["seq"][number] = -1
        for name, blank in _NEWEST.items():
            self._newest[name][first : first + size] = blank
        self._intervals.forget(range(first, first + size))

    def newest(self, member: int) -> OpRecord | None:
        """The newest record of a member."""
        return self._record(self._newest, member, member) if self._newest["seq"][member] >= 0 else None

    def records_of(self, comm: int, seq: int) -> dict[int, OpRecord]:
        """The records of an operation of a communicator that not all members have completed, by member."""
        if (start := self._open[comm].get(seq)) is None:
            return {}
        first, known = int(self._comms["first"][comm]), self._kept["known"]
        places = (place for place in range(self._comms["size"][comm]) if known[start + place])
        return {place: self._record(self._kept, start + place, first + place) for place in places}

    def uncompleted(self, comm: int, member: int) -> OpRecord | None:
        """The first operation that a member has entered and not completed; those of a communicator end in order."""
        newest = self._newest
        if newest["seq"][member] < 0 or newest["finished_s"][member] > 0.0:
            return None
        place, done, known = member - self._comms["first"][comm], newest["done"][member], self._kept["known"]
        entered = [
            (seq, start + place) for seq, start in self._open[comm].items() if seq > done and known[start + place]
        ]
        return self._record(self._kept, min(entered)[1], member) if entered else self.newest(member)

    def _record(self, table: Table, row: int, member: int) -> OpRecord:
        """A record from its row in a table."""
        comm, place = (int(self._members.table[name][member]) for name in ("comm", "place"))
        return self._rows.record(table, row, (self._names[comm], place))

    def ingest(self, batch: Batch, validator: RecordValidator) -> list[float]:
        """File a round of windows; return the latest times (s) between two operations alike."""
        ops = self._rows.read(batch, validator)
        evaluated = ops.seq <= self._comms["evaluated"][self._members.table["comm"][ops.members]]
        ops = ops._replace(evaluated=evaluated, kept=self._kept_at(ops.members, ops.seq, evaluated))
        order = np.lexsort((ops.seq, ops.entered_s, ops.ranks))
        filed = [(turn, self._file(ops.pick(turn))) for turn in rounds(ops.ranks, order)]
        return _in_order(ops, filed)

    def _kept_at(self, members: Ints, seq: Ints, evaluated: Bools) -> Ints:
        """Where records are kept: -1 for operations that are evaluated, or are too far behind."""
        comms, newest = self._members.table["comm"][members], self._comms
        todo = np.flatnonzero(~evaluated)
        while len(later := todo[seq[todo] > newest["seq"][comms[todo]]]):
            one = np.full(self._comms.count, -1)
            one[comms[later]] = later
            one = one[one >= 0]
            self._begin(comms[one], seq[one].tolist())
        starts = np.full(len(members), -1)
        latest = seq[todo] == newest["seq"][comms[todo]]
        starts[todo[latest]] = newest["start"][comms[todo[latest]]]
        others = todo[~latest]
        starts[others] = self._starts_of(comms[others], seq[others])
        missing = others[starts[others] < 0]
        first = dict(
            zip(zip(comms[missing].tolist(), seq[missing].tolist(), strict=True), missing.tolist(), strict=True)
        )
        new = np.asarray(sorted(first.values()), np.int64)
        for turn in rounds(comms[new]):
            self._begin(comms[new[turn]], seq[new[turn]].tolist())
        starts[missing] = self._starts_of(comms[missing], seq[missing])
        kept: Ints = np.where(starts < 0, -1, starts + self._members.table["place"][members])
        self._kept["touched"][starts[starts >= 0]] = True
        return kept

    def _starts_of(self, comms: Ints, seq: Ints) -> Ints:
        return self._starts.rows(zip(comms.tolist(), seq.tolist(), strict=True), len(comms))

    def _begin(self, comms: Ints, seqs: list[int]) -> None:
        """Make room for the records of operations, one of each communicator."""
        sizes = self._comms["size"][comms]
        for size in np.unique(sizes).tolist():
            of_size = np.flatnonzero(sizes == size).tolist()
            self._begin_sized(size, comms[of_size].tolist(), [seqs[index] for index in of_size])

    def _begin_sized(self, size: int, comms: list[int], seqs: list[int]) -> None:
        free = self._free.setdefault(size, [])
        if lacking := max(0, len(comms) - len(free)):
            first = self._kept.add(lacking * size)
            free += range(first, first + lacking * size, size)
        starts = free[-len(comms) :]
        del free[-len(comms) :]
        self._kept["comm"][starts], self._kept["seq"][starts] = comms, seqs
        self._operation.update(zip(starts, zip(comms, seqs, strict=True), strict=True))
        for comm, seq, start in zip(comms, seqs, starts, strict=True):
            self._open[comm][seq] = self._starts[comm, seq] = start
            if len(self._open[comm]) > _OPS_KEPT:
                self._end(size, [self._open[comm][min(self._open[comm])]])
        newer = self._kept["seq"][starts] > self._comms["seq"][comms]
        self._comms["seq"][np.asarray(comms)[newer]] = self._kept["seq"][starts][newer]
        self._comms["start"][np.asarray(comms)[newer]] = np.asarray(starts)[newer]

    def _end(self, size: int, starts: list[int]) -> None:
        """Keep no records of operations of communicators of `size` any more."""
        rows = np.add.outer(np.asarray(starts, np.int64), np.arange(size))
        for name, blank in _KEPT.items():
            self._kept[name][rows] = blank
        self._free.setdefault(size, []).extend(starts)
        for comm, seq in map(self._operation.pop, starts):
            del self._starts[comm, seq]
            del self._open[comm][seq]

    def _file(self, ops: OpColumns) -> Floats:
        """File records of as many ranks: the time since the last one alike for each that is new, else nan."""
        newest, ranks = self._newest, self._members.ranks
        before = newest["seq"][ops.members]
        fresh = ~(ops.evaluated | ((ops.kept >= 0) & self._kept["known"][ops.kept]))
        ranks["moved_s"][ops.ranks] = np.where(
            fresh | self._changed(ops, before), ops.ends_s, ranks["moved_s"][ops.ranks]
        )
        follows = (before >= 0) & (before == ops.seq - 1)
        computed_s = np.maximum(0.0, ops.entered_s - ranks["event_s"][ops.ranks])
        gap_s = np.where(follows & (newest["finished_s"][ops.members] != 0.0), computed_s, _UNSEEN)
        self._keep(ops, gap_s, fresh)
        later = ops.pick(ops.seq >= before)
        for name in FIELDS:
            newest[name][later.members] = getattr(later, name)
        done = ops.pick(ops.finished_s > 0.0)
        newest["done"][done.members] = np.maximum(newest["done"][done.members], done.seq)
        since_s = self._since_alike(ops, fresh, follows)
        event_s = np.minimum(np.maximum(ops.entered_s, ops.finished_s), ops.ends_s)
        self._members.note_acts(ops.members, event_s)
        ranks["event_s"][ops.ranks] = np.fmax(event_s, ranks["event_s"][ops.ranks])
        return since_s

    def _changed(self, ops: OpColumns, before: Floats) -> Bools:
        """Whether records differ from the newest of their members."""
        newest = self._newest
        changed: Bools = ops.seq != before
        for name in FIELDS[1:]:
            changed |= getattr(ops, name) != newest[name][ops.members]
        return changed

    def _keep(self, ops: OpColumns, gap_s: Floats, fresh: Bools) -> None:
        open_ = (ops.kept >= 0) & ~ops.evaluated
        rows = ops.kept[open_]
        for name in FIELDS:
            self._kept[name][rows] = getattr(ops, name)[open_]
        self._kept["known"][rows] = True
        first = open_ & fresh
        self._kept["gap_s"][ops.kept[first]] = gap_s[first]

    def _since_alike(self, ops: OpColumns, fresh: Bools, follows: Bools) -> Floats:
        """Times since the last operation of the same member, kind and size, unless records between were lost."""
        broken = fresh & ~follows
        self._newest["unbroken"][ops.members[broken]] = ops.seq[broken]
        new, since_s = ops.pick(fresh), np.full(len(fresh), _UNSEEN)
        unbroken = self._newest["unbroken"][new.members]
        alike = self._rows.kinds(new.call), new.size_bytes
        since_s[fresh] = self._intervals.since_s(new.members, alike, (new.seq, new.entered_s, unbroken))
        return since_s

    def finished(self) -> list[Finished]:
        """Operations that every member has finished, each once; those of one communicator in order."""
        starts = np.flatnonzero(self._kept.used("touched"))
        self._kept["touched"][starts] = False
        sizes = self._comms["size"][self._kept["comm"][starts]]
        return [ops for size in np.unique(sizes).tolist() for ops in self._finished(size, starts[sizes == size])]

    def _finished(self, size: int, starts: Ints) -> list[Finished]:
        rows = np.add.outer(starts, np.arange(size))
        whole = (self._kept["finished_s"][rows] > 0.0).all(axis=1)
        starts, rows = starts[whole], rows[whole]
        comms, seqs = self._kept["comm"][starts], self._kept["seq"][starts]
        entered_s, gap_s = self._kept["entered_s"][rows], self._kept["gap_s"][rows]
        inside_s = self._kept["finished_s"][rows] - entered_s
        np.maximum.at(self._comms["evaluated"], comms, seqs)
        self._end(size, starts.tolist())
        members = np.add.outer(self._comms["first"][comms], np.arange(size))
        ops = Finished(comms, self._members.rank_of(members), inside_s, gap_s, entered_s)
        return [ops.pick(turn) for turn in rounds(comms, np.lexsort((seqs, comms)))]


def _in_order(ops: OpColumns, filed: list[tuple[Ints, Floats]]) -> list[float]:
    """The latest times found, in the order of windows and, in each, of operations."""
    if not filed:
        return []
    which, since_s = np.concatenate([turn for turn, _ in filed]), np.concatenate([times for _, times in filed])
    usable = ~np.isnan(since_s)
    if usable.sum() > INTERVALS_KEPT:
        windows = ops.windows[which]
        usable &= windows >= np.partition(windows[usable], -INTERVALS_KEPT)[-INTERVALS_KEPT]
    which, since_s = which[usable], since_s[usable]
    order = np.lexsort((ops.seq[which], ops.entered_s[which], ops.windows[which]))
    return list(since_s[order].tolist())
