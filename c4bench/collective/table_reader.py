"""Read a table of a telemetry file repeatedly, and decode only the records written since."""

import mmap
from collections.abc import Callable, Collection, Iterable
from itertools import chain, compress, count, repeat
from operator import add, ne
from pathlib import Path
from typing import Generic, TypeVar

from c4bench.collective import ring_layout as layout
from c4bench.errors import UsageError

Value = TypeVar("Value")
_ATTEMPTS = 1000


class TableReader(Generic[Value]):
    """A table of `places` records of `size` bytes at `base`; `values` are the records at the last reading.

    A slot not in use is None. The table is filled from the front, so `values` covers only the slots in use, and at
    least `at_once`. `decode` gets all records that have changed: a call for each would cost as much as decoding it.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        path: Path,
        base: int,
        size: int,
        places: int,
        decode: Callable[[Iterable[bytes]], Iterable[Value]],
        at_once: int = 1,
    ) -> None:
        self._memory, self._path = memory, path
        self._base, self._size, self._places = base, size, places
        self._decode = decode
        self._generations: tuple[int, ...] = ()
        self._sums: tuple[int, ...] = ()
        self.values: list[Value | None] = [None] * at_once

    def read(self) -> Collection[int]:
        """Read the table; returns the indices of records that have changed. Raises UsageError for a damaged file."""
        memory, base, size, values = self._memory, self._base, self._size, self.values
        now = layout.generations(memory, base, size, len(values))
        if now == self._generations:
            return ()
        while any(now[-2:]) and len(values) < self._places:
            values += [None] * min(len(values), self._places - len(values))
            now = layout.generations(memory, base, size, len(values))
        # A write to either copy increases the sum of both.
        sums = tuple(map(add, now[::2], now[1::2]))
        written = list(compress(count(), map(ne, sums, chain(self._sums, repeat(0)))))
        newest = [base + (2 * place + (now[2 * place + 1] > now[2 * place])) * size for place in written]
        copies = layout.read_copies(memory, newest, size)
        if None in copies:
            places = zip(copies, written, strict=True)
            copies = [self._record(place) if copy is None else copy for copy, place in places]
        # An empty record is a slot that was released.
        decoded = iter(self._decode(filter(None, copies)))
        for place, copy in zip(written, copies, strict=True):
            values[place] = next(decoded) if copy else None
        # The generations from before the reading: anything written during it is read again next time.
        self._generations, self._sums = now, sums
        return written

    def _record(self, place: int) -> bytes | None:
        return record(self._memory, self._path, self._base + 2 * place * self._size, self._size)


def record(memory: mmap.mmap, path: Path, offset: int, size: int) -> bytes | None:
    """A record, or None for one never written.

    Two invalid copies mean that the writer wrote twice during the reading, so it is read again. After many attempts the
    file must be damaged: raises UsageError.
    """
    for _ in range(_ATTEMPTS):
        content = layout.read_slot(memory, offset, size)
        if content is not None or not any(layout.generations(memory, offset, size)):
            return content
    raise UsageError(f"{path} is damaged at byte {offset}: no complete copy of a record")
