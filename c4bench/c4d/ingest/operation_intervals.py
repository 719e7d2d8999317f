"""The time between operations alike: of one member of a communicator, of one kind and size."""

from collections.abc import Iterable

import numpy as np

from c4bench.c4d.columns import Floats, Index, Ints, Runs, Table

_NONE = -1
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
        self._entries = Table(seq=_NONE, entered_s=0.0)
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
                self._entries["seq"][self._rows[key]] = _NONE

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
