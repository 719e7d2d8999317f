"""Buffers of other providers than this process's memory."""

import mmap
import os

import numpy as np
import pytest

from c4bench.collective.memory import ExportedMemory, HostMemory, Registrations
from c4bench.verbs.errors import VerbsError
from tools.loopback import LoopbackPort, Network


class ExportingPort(LoopbackPort):
    """A NIC that counts addresses in exported memory from the offset, as DMA-BUF registrations do."""

    def register_dmabuf(self, fd, offset, length):
        self.exported = mmap.mmap(fd, length)
        return self.register(offset, length)


def export(size_bytes):
    fd = os.memfd_create("exported")
    os.truncate(fd, size_bytes)
    return fd


def test_exported_memory_is_found_by_the_nics_addresses():
    """What the processor writes into a view lies in the exported memory, at the address the NIC is told."""
    port = ExportingPort(Network())
    registrations = Registrations(port)
    block = ExportedMemory(export).allocate(8192)
    registrations.adopt(block)
    view = block.bytes[4096:4160].view(np.float32)
    view[:] = 7
    region, shift = registrations.find(view)
    start = view.ctypes.data + shift
    assert start == 4096
    assert region.covers(port, start, view.nbytes)
    assert np.frombuffer(port.exported[start : start + view.nbytes], np.float32).tolist() == [7] * 16
    registrations.close()


def test_a_nic_without_dmabuf_says_so():
    """Exported memory that the NIC cannot register is a lack of memory, with the NIC's reason."""
    registrations = Registrations(LoopbackPort(Network()))
    with pytest.raises(MemoryError, match=r"a buffer of 8192 bytes cannot be registered: .*only host memory"):
        registrations.adopt(ExportedMemory(export).allocate(8192))


def test_memory_that_is_not_there_says_how_much():
    """An allocation beyond the address space is a MemoryError with its size, not a crash."""
    with pytest.raises(MemoryError, match=f"cannot allocate {1 << 60} bytes"):
        HostMemory().allocate(1 << 60)


def test_a_refused_array_leaves_no_entry(monkeypatch):
    """After a refusal the same array can be registered."""
    port = LoopbackPort(Network())
    registrations = Registrations(port)
    array = np.zeros(100)

    def refuse(_address, _length):
        raise VerbsError("rxe0: no", device="rxe0")

    with monkeypatch.context() as patch:
        patch.setattr(port, "register", refuse)
        with pytest.raises(MemoryError, match="an array of 800 bytes cannot be registered"):
            registrations.find(array)
    assert registrations.find(array).region.covers(port, array.ctypes.data, 800)
