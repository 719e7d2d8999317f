"""The time between operations alike: of one member of a communicator, of one kind and size."""

from collections.abc import Iterable

import numpy as np

from c4bench.c4d.columns import Floats, Index, Ints, Table

_NONE = -1.0
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

    def since_s(self, members: Ints, alike: tuple[Ints, Ints], numbers: tuple[Ints, Floats, Floats]) -> Floats:
        """Seconds since the last one alike of each of these operations, all of different members; nan where unknown.

        Those of one kind (a number) and size are `alike`. `numbers` are their sequence numbers, their times of entry
        (s), and since which sequence number no record of their members was lost.
        """
        seq, entered_s, unbroken = numbers
        rows = self._rows_of(members, *alike)
        before, before_s = self._entries["seq"][rows], self._entries["entered_s"][rows]
        usable = (before >= 0) & (before >= unbroken) & (entered_s > before_s)
        self._entries["seq"][rows], self._entries["entered_s"][rows] = seq, entered_s
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
        likenesses = list(zip(kinds.tolist(), sizes.tolist(), strict=True))
        numbers = self._kinds.rows(likenesses, len(likenesses))
        for index in np.flatnonzero(numbers < 0).tolist():
            numbers[index] = self._kinds.setdefault(likenesses[index], len(self._kinds))
        keys = (members + (numbers << _MEMBER_BITS)).tolist()
        rows = self._rows.rows(keys, len(keys))
        new = np.flatnonzero(rows < 0)
        rows[new] = self._entries.add(len(new)) + np.arange(len(new))
        for index in new.tolist():
            self._rows[keys[index]] = int(rows[index])
            self._of_member.setdefault(int(members[index]), []).append(keys[index])
        return rows
