"""Reads one table of a telemetry file again and again: only what has been written to since is decoded again."""

import mmap
from collections.abc import Callable
from itertools import chain, compress, count, repeat
from operator import ne
from pathlib import Path
from typing import Generic, TypeVar

from c4bench.collective import ring_layout as layout
from c4bench.collective.recorder import FREE
from c4bench.errors import UsageError

Value = TypeVar("Value")
_ATTEMPTS = 1000


class TableReader(Generic[Value]):
    """The table of `places` records of `size` bytes at `base`.

    It is filled from the front: as many places are looked at as are in use, and at least `at_once`.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        path: Path,
        base: int,
        size: int,
        places: int,
        decode: Callable[[bytes], Value],
        at_once: int = 1,
    ) -> None:
        self._memory, self._path = memory, path
        self._base, self._size, self._places = base, size, places
        self._decode = decode
        self._generations: tuple[int, ...] = ()
        self._values: list[Value | None] = [None] * at_once

    def read(self) -> list[Value | None]:
        """What each place holds, None where one is not in use, perhaps for fewer places than there are.

        Raises UsageError for a damaged file.
        """
        self._refresh()
        return self._values

    def _refresh(self) -> None:
        now = layout.generations(self._memory, self._base, self._size, len(self._values))
        if now == self._generations:
            return
        while any(now[-2:]) and len(self._values) < self._places:
            self._values += [None] * min(len(self._values), self._places - len(self._values))
            now = layout.generations(self._memory, self._base, self._size, len(self._values))
        written = compress(count(), map(ne, now, chain(self._generations, repeat(0))))
        for place in dict.fromkeys(at // 2 for at in written):
            raw = record(self._memory, self._path, self._base + place * 2 * self._size, self._size)
            self._values[place] = None if raw is None or raw == FREE else self._decode(raw)
        # As they were before the reading: what was written meanwhile is read again the next time.
        self._generations = now


def record(memory: mmap.mmap, path: Path, offset: int, size: int) -> bytes | None:
    """A record, or None for one never written.

    Two spoiled copies mean that the writer overtook this reading twice, so it runs and another reading will do; or,
    after many attempts, that the file is damaged: UsageError.
    """
    for _ in range(_ATTEMPTS):
        found = layout.read_slot(memory, offset, size)
        if found is not None or not any(layout.generations(memory, offset, size)):
            return found
    raise UsageError(f"{path} is damaged at byte {offset}: no complete copy of a record")
