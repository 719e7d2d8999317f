"""The rows of windows that are operations of a job, as columns of those that are believed."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.c4d.columns import Bools, Floats, Ints, Table
from c4bench.c4d.ingest.batch import UNKNOWN, Batch, HostRows
from c4bench.c4d.ingest.members import Members
from c4bench.c4d.ingest.record_validator import RecordValidator, operation_times_ordered
from c4bench.model.telemetry import OpRecord
from c4bench.model.window import CallName, ranks_in

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
