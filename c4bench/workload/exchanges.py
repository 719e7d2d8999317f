"""Collectives of a communicator whose results are checked: what the loops of modelled programs repeat."""

import queue
import threading
from collections.abc import Callable

import numpy as np

from c4bench.collective.communicator import Communicator

# Carries out a collective; returns whether every element that this rank has received is right.
Exchange = Callable[[], bool]
_ITEM_BYTES = 4


def _items(size_bytes: float) -> int:
    """How many items stand for so many bytes; modelled messages are never empty."""
    return max(1, round(size_bytes / _ITEM_BYTES))


def all_reduce(comm: Communicator, size_bytes: float) -> Exchange:
    """The sum over all ranks, of which each brings its number."""
    array = np.empty(_items(size_bytes), np.float32)
    total = comm.size * (comm.size + 1) / 2

    def exchange() -> bool:
        array.fill(comm.rank + 1)
        comm.all_reduce(array)
        return bool((array == total).all())

    return exchange


def all_to_all(comm: Communicator, size_bytes: float) -> Exchange:
    """`size_bytes` of each rank, in equal parts for all."""
    sent = np.full((comm.size, _items(size_bytes / comm.size)), comm.rank + 1, np.float32)
    received = np.empty_like(sent)
    expected = np.arange(1, comm.size + 1)[:, np.newaxis]

    def exchange() -> bool:
        received.fill(0)
        comm.all_to_all(received, sent)
        return bool((received == expected).all())

    return exchange


def send(comm: Communicator, peer: int, size_bytes: float) -> Exchange:
    """A message to `peer`."""
    array = np.full(_items(size_bytes), comm.rank + 1, np.float32)

    def exchange() -> bool:
        comm.send(array, peer)
        return True

    return exchange


def receive(comm: Communicator, peer: int, size_bytes: float) -> Exchange:
    """The message from `peer`."""
    array = np.empty(_items(size_bytes), np.float32)

    def exchange() -> bool:
        array.fill(0)
        comm.recv(array, peer)
        return bool((array == peer + 1).all())

    return exchange


class InBackground:
    """A thread that carries out exchanges in the order in which they are given."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[list[Exchange] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._right = True
        self._thread = threading.Thread(target=self._carry_out)
        self._thread.start()

    def give(self, bucket: list[Exchange]) -> None:
        """Carry out these next."""
        self._given.put(bucket)

    def finish(self) -> bool:
        """Wait until all have ended; whether all were exact. Raises what ended the thread."""
        self._given.put(None)
        self._thread.join()
        if self._error:
            raise self._error
        return self._right

    def _carry_out(self) -> None:
        try:
            while (bucket := self._given.get()) is not None:
                for exchange in bucket:
                    self._right = exchange() and self._right
        except BaseException as error:  # whoever waits for the end must learn of it
            self._error = error
