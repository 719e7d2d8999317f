"""Memory of another device, such as a GPU, whose driver exports it as DMA-BUF."""

import mmap
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from c4bench.collective.memory import Block, Registered
from c4bench.verbs.transport import Port


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
