"""A worker's connections to its peers: the workers with the same number at the other sites."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.workload.diloco.quantisation import Bytes
from c4bench.workload.models.protocol import Vector

Result = TypeVar("Result")
# Connects this worker to its peers at two sites, of which one is its own, in their order; the number names a turn.
Connect = Callable[[tuple[int, int], int], Communicator]


class Peers:
    """Communicators of two, one for each other site. One that fails is closed, and made again at a later turn.

    Each pair of sites is on its own, so that a site that is cut off harms only what is exchanged with it.
    """

    def __init__(self, site: int, connect: Connect) -> None:
        self._site, self._connect = site, connect
        self._pairs: dict[int, Communicator] = {}

    def exchange(self, sites: Collection[int], turn: int, own: Bytes) -> dict[int, Bytes]:
        """Exchange bytes of equal length with the peers at these sites; by site what has arrived, and the own bytes."""
        others = sorted(set(sites) - {self._site})
        # All workers connect their pairs in one order, since each waits for the other end.
        for other in others:
            if other not in self._pairs:
                self._attempt(other, lambda other=other: self._join(other, turn))  # type: ignore[misc]
        connected = [other for other in others if other in self._pairs]
        with ThreadPoolExecutor(max(1, len(connected))) as pool:
            arrived = pool.map(lambda other: self._attempt(other, lambda: self._swap(other, own)), connected)
        received = dict(zip(connected, arrived, strict=True))
        return {self._site: own} | {site: data for site, data in received.items() if data is not None}

    def transfer(self, other: int, donor: int, vector: Vector) -> bool:
        """Copy the `donor`'s vector to the other of the two peers; returns whether that worked here."""
        pair = self._pairs.get(other)
        if pair is None:
            return False
        source = pair.rank if donor == self._site else 1 - pair.rank
        return bool(self._attempt(other, lambda: self._copied(pair, vector, source)))

    @staticmethod
    def _copied(pair: Communicator, vector: Vector, source: int) -> bool:
        pair.broadcast(vector, source)
        return True

    def _join(self, other: int, turn: int) -> None:
        sites = min(self._site, other), max(self._site, other)
        self._pairs[other] = self._connect(sites, turn)

    def _swap(self, other: int, own: Bytes) -> Bytes:
        pair = self._pairs[other]
        both = np.empty(2 * own.size, np.uint8)
        pair.all_gather(both, own)
        return both[own.size :] if pair.rank == 0 else both[: own.size]

    def _attempt(self, other: int, act: Callable[[], Result]) -> Result | None:
        """Do something with a pair; None if it fails."""
        try:
            return act()
        except CollectiveError:
            if pair := self._pairs.pop(other, None):
                pair.close()
            return None

    def close(self) -> None:
        """Close all connections."""
        for pair in self._pairs.values():
            pair.close()
        self._pairs.clear()
