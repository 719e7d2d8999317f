"""Registered memory: buffer providers, and a cache of registered arrays."""

import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Port, Region

Array = npt.NDArray[Any]
_CACHE_ENTRIES = 64


class Block(Protocol):
    """Memory from a provider."""

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """All of the memory as the CPU sees it, one-dimensional."""

    def register(self, port: Port) -> "Registered":
        """Register the memory with a NIC. May be called once for each NIC."""


class Provider(Protocol):
    """Allocates a communicator's buffers."""

    def allocate(self, size_bytes: int) -> Block:
        """Allocate memory, page-aligned and zeroed; `size_bytes` is at least 1. Raises MemoryError."""


class Registered(NamedTuple):
    """Memory registered with a NIC. Add `shift` to the CPU's address to get the NIC's."""

    region: Region
    shift: int = 0


class _HostBlock:
    def __init__(self, size_bytes: int) -> None:
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(_pages(size_bytes), np.uint8)

    def register(self, port: Port) -> Registered:
        return Registered(port.register(self.bytes.ctypes.data, self.bytes.size))


class HostMemory:
    """Ordinary memory of this process."""

    def allocate(self, size_bytes: int) -> Block:
        """Allocate anonymous pages."""
        return _HostBlock(size_bytes)


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
        self._map = _pages(size_bytes)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
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


def _pages(size_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size_bytes)
    except OSError as error:
        raise MemoryError(f"cannot allocate {size_bytes} bytes: {error.strerror}") from None


class _Entry(NamedTuple):
    registered: Registered
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
    """Memory registered with one port: blocks, permanently, and a cache of the user's arrays by address and size.

    The cache evicts the least recently used array. An entry ends when the owner of the memory is destroyed, before the
    memory is freed, so that a later array at the same address never uses a stale registration. An owner that does not
    support weak references is kept alive instead.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._blocks: list[tuple[range, Registered]] = []

    def adopt(self, block: Block) -> None:
        """Register a block; arrays inside it need no registration of their own."""
        start = block.bytes.ctypes.data
        with _registering(f"a buffer of {block.bytes.size} bytes"):
            self._blocks.append((range(start, start + block.bytes.size), block.register(self._port)))

    def find(self, array: Array) -> Registered:
        """The registration that covers a contiguous, non-empty array; registers it if needed. Raises MemoryError."""
        key = (array.ctypes.data, array.nbytes)
        for span, registered in self._blocks:
            if key[0] in span and key[0] + key[1] <= span.stop:
                return registered
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._add(key, array)
            while len(self._entries) > _CACHE_ENTRIES:
                self._drop(next(iter(self._entries)))
        self._entries.move_to_end(key)
        return entry.registered

    def buffer(self, array: Array) -> NicBuffer:
        """An array as this port's NIC addresses it. Raises MemoryError."""
        region, shift = self.find(array)
        return NicBuffer(array.ctypes.data + shift, region.lkey, region.rkey)

    def _add(self, key: tuple[int, int], array: Array) -> _Entry:
        with _registering(f"an array of {array.nbytes} bytes"):
            registered = Registered(self._port.register(*key))
        owner = _owner(array)
        try:
            watch = weakref.finalize(owner, self._drop, key)
        except TypeError:
            return _Entry(registered, None, owner)
        watch.atexit = False
        return _Entry(registered, watch, None)

    def _drop(self, key: tuple[int, int]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            if entry.watch is not None:
                entry.watch.detach()
            entry.registered.region.close()

    def close(self) -> None:
        """Deregister everything."""
        for key in list(self._entries):
            self._drop(key)
        for _, registered in self._blocks:
            registered.region.close()
        self._blocks.clear()


def _owner(array: Array) -> Any:  # noqa: ANN401  (whatever object the memory belongs to)
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner


class _ExportedBlock:
    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, size_bytes), np.uint8)

    def register(self, port: Port) -> Registered:
        # A NIC addresses DMA-BUF memory from the registered offset on, here 0.
        return Registered(port.register_dmabuf(self._fd, 0, self.bytes.size), -self.bytes.ctypes.data)

    def __del__(self) -> None:
        os.close(self._fd)


class ExportedMemory:
    """Buffers from `export(size_bytes)`, which returns a DMA-BUF descriptor; the buffer closes it.

    The CPU reduces through a mapping of the memory, so the exporter must support `mmap`. Allocation fails if a NIC
    cannot register the memory.
    """

    def __init__(self, export: Callable[[int], int]) -> None:
        self._export = export

    def allocate(self, size_bytes: int) -> Block:
        """Memory of the exporting device."""
        return _ExportedBlock(self._export(size_bytes), size_bytes)
