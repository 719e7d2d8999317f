"""Registrations of arrays, and what cannot be allocated or registered."""

import numpy as np
import pytest

from c4bench.collective.memory import Registrations, pages
from c4bench.verbs.errors import VerbsError
from tools.loopback import LoopbackPort, Network


def test_parts_of_a_kept_array_share_its_registration():
    """A view of memory that is kept needs no registration of its own."""
    registrations = Registrations(LoopbackPort(Network()))
    memory = pages(8192)
    registrations.keep(memory)
    view = memory[4096:4160]
    assert registrations.find(view) is registrations.find(memory)
    assert registrations.buffer(view).address == view.ctypes.data == memory.ctypes.data + 4096
    registrations.close()


def test_memory_that_is_not_there_says_how_much():
    """An allocation beyond the address space is a MemoryError with its size, not a crash."""
    with pytest.raises(MemoryError, match=f"cannot allocate {1 << 60} bytes"):
        pages(1 << 60)


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
    assert registrations.find(array).covers(port, array.ctypes.data, 800)
