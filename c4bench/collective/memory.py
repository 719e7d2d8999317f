"""Registered memory: buffers, and a cache of registered arrays."""

import mmap
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Port, Region

Array = npt.NDArray[Any]
_CACHE_ENTRIES = 64


class NicBuffer(NamedTuple):
    """Memory as a NIC addresses it: address, local and remote key. All are 0 for an array without bytes."""

    address: int
    lkey: int
    rkey: int


# Stands for the number of a NIC where ranks of one host copy memory; its address is the processor's, its keys are 0.
INSIDE = -1
# Memory as each NIC that may transfer it addresses it, by the NIC's number.
NicBuffers = Mapping[int, NicBuffer]


class Buffer:
    """Page-aligned memory registered with several ports, by the number of their NIC."""

    def __init__(self, ports: Mapping[int, Port], size_bytes: int) -> None:
        self._map = _map(size_bytes)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.view = memoryview(self._map)
        self.address = self.bytes.ctypes.data
        with _registering(f"a buffer of {size_bytes} bytes"):
            self.regions = {nic: port.register(self.address, size_bytes) for nic, port in ports.items()}

    def free(self) -> None:
        """Free the pages. The ports must be closed. Anything that still refers to the buffer reads zeros."""
        self._map.madvise(mmap.MADV_REMOVE)


class ChannelMemory:
    """A channel's part of a buffer: the bytes from `start` on."""

    def __init__(self, buffer: Buffer, start: int, size_bytes: int) -> None:
        # A buffer stays registered as long as something refers to it.
        self._buffer = buffer
        self.address = buffer.address + start
        self.view = buffer.view[start : start + size_bytes]
        self.bytes = buffer.bytes[start : start + size_bytes]

    def lkey(self, nic: int) -> int:
        """The local key on a NIC."""
        return self._buffer.regions[nic].lkey

    def rkey(self, nic: int) -> int:
        """The remote key on a NIC."""
        return self._buffer.regions[nic].rkey


class Buffers:
    """All buffers of a communicator. Endpoints refer to them and to each other, and may outlive the communicator."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []

    def make(self, ports: Mapping[int, Port], size_bytes: int) -> Buffer:
        """A new buffer. Raises MemoryError."""
        buffer = Buffer(ports, size_bytes)
        self._buffers.append(buffer)
        return buffer

    def close(self) -> None:
        """Free all buffers. May be called again."""
        while self._buffers:
            self._buffers.pop().free()


def pages(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Anonymous memory of this process, page-aligned and zeroed; at least one byte. Raises MemoryError."""
    return np.frombuffer(_map(size_bytes), np.uint8)


def _map(size_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size_bytes)
    except OSError as error:
        raise MemoryError(f"cannot allocate {size_bytes} bytes: {error.strerror}") from None


class _Entry(NamedTuple):
    region: Region
    watch: "weakref.finalize[Any, Any] | None"
    keep: Any


@contextmanager
def _registering(what: str) -> Iterator[None]:
    """Raise MemoryError when a NIC refuses to register memory."""
    try:
        yield
    except VerbsError as error:
        raise MemoryError(f"{what} cannot be registered: {error}") from error


class Registrations:
    """Memory registered with one port: kept arrays, permanently, and a cache of the user's arrays by address and size.

    The cache evicts the least recently used array. An entry ends when the owner of the memory is destroyed, before the
    memory is freed, so that a later array at the same address never uses a stale registration. An owner that does not
    support weak references is kept alive instead.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._kept: list[tuple[range, Region]] = []

    def keep(self, array: Array) -> None:
        """Register an array until this is closed; parts of it need no registration of their own. Raises MemoryError."""
        start = array.ctypes.data
        self._kept.append((range(start, start + array.nbytes), self._register(start, array.nbytes)))

    def find(self, array: Array) -> Region:
        """The registration that covers a contiguous, non-empty array; registers it if needed. Raises MemoryError."""
        key = (array.ctypes.data, array.nbytes)
        for span, region in self._kept:
            if key[0] in span and key[0] + key[1] <= span.stop:
                return region
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._add(key, array)
            while len(self._entries) > _CACHE_ENTRIES:
                self._drop(next(iter(self._entries)))
        self._entries.move_to_end(key)
        return entry.region

    def buffer(self, array: Array) -> NicBuffer:
        """An array as this port's NIC addresses it. Raises MemoryError."""
        region = self.find(array)
        return NicBuffer(array.ctypes.data, region.lkey, region.rkey)

    def _register(self, address: int, size_bytes: int) -> Region:
        with _registering(f"an array of {size_bytes} bytes"):
            return self._port.register(address, size_bytes)

    def _add(self, key: tuple[int, int], array: Array) -> _Entry:
        region = self._register(*key)
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
        """Deregister everything."""
        for key in list(self._entries):
            self._drop(key)
        for _, region in self._kept:
            region.close()
        self._kept.clear()


def _owner(array: Array) -> Any:  # noqa: ANN401  (whatever object the memory belongs to)
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner
