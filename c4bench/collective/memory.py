"""Registered memory: buffers of our own, and user arrays registered once and used again."""

import mmap
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from c4bench.verbs.transport import Port, Region

Array = npt.NDArray[Any]
_CACHE_ENTRIES = 64


class Buffer:
    """Page-aligned memory of our own, registered with one port."""

    def __init__(self, port: Port, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.view = memoryview(self._map)
        self.address = self.bytes.ctypes.data
        self.region: Region = port.register(self.address, size_bytes)


class _Entry(NamedTuple):
    region: Region
    watch: "weakref.finalize[Any, Any] | None"
    keep: Any


class Registrations:
    """The user arrays registered with one port, by address and size; the least recently used leave first.

    An entry ends when the memory's owner dies, before the memory is returned, so that a later array at the same address
    can never be reached through stale pages. An owner that cannot be watched is kept alive instead.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()

    def region(self, array: Array) -> Region:
        """The registration of a contiguous, non-empty array."""
        key = (array.ctypes.data, array.nbytes)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._add(key, array)
            while len(self._entries) > _CACHE_ENTRIES:
                self._drop(next(iter(self._entries)))
        self._entries.move_to_end(key)
        return entry.region

    def _add(self, key: tuple[int, int], array: Array) -> _Entry:
        region = self._port.register(*key)
        owner = _owner(array)
        try:
            watch = weakref.finalize(owner, self._drop, key)
        except TypeError:
            return _Entry(region, None, owner)
        watch.atexit = False
        return _Entry(region, watch, None)

    def _drop(self, key: tuple[int, int]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            if entry.watch is not None:
                entry.watch.detach()
            entry.region.close()

    def close(self) -> None:
        """Deregister all."""
        for key in list(self._entries):
            self._drop(key)


def _owner(array: Array) -> Any:  # noqa: ANN401  (whatever object the memory belongs to)
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner
