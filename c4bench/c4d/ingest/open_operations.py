"""Operations that not all members have finished: where the records of each are kept."""

from typing import NamedTuple

import numpy as np

from c4bench.c4d.columns import Ints, distinct
from c4bench.c4d.ingest.record_validator import SEQ_BITS

# Open operations of a communicator that are kept: with lost records some never end, and the oldest is dropped.
_OPS_KEPT = 128
_SEQ = (1 << SEQ_BITS) - 1


class Place(NamedTuple):
    """Sequence numbers of operations of one communicator, ascending, and the first row of the records of each."""

    seqs: Ints
    starts: Ints


class OpenOperations:
    """The first row of the records of each operation, by the number of its communicator and its sequence number."""

    def __init__(self) -> None:
        # Both numbers in one, ascending.
        self._keys: Ints = np.empty(0, np.int64)
        self._starts: Ints = np.empty(0, np.int64)

    def starts(self, comms: Ints, seqs: Ints) -> Ints:
        """The first row of each of these operations, -1 for one that is not open."""
        if not len(self._keys):
            return np.full(len(comms), -1)
        keys = _key(comms, seqs)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._starts[at], -1)

    def of(self, comm: int) -> Place:
        """The open operations of a communicator."""
        first, end = np.searchsorted(self._keys, [comm << SEQ_BITS, (comm + 1) << SEQ_BITS]).tolist()
        return Place(self._keys[first:end] & _SEQ, self._starts[first:end])

    def missing(self, comms: Ints, seqs: Ints) -> tuple[Ints, Ints]:
        """Those of these operations that are not open, each once."""
        keys = distinct(_key(comms, seqs)[self.starts(comms, seqs) < 0])
        return keys >> SEQ_BITS, keys & _SEQ

    def add(self, comms: Ints, seqs: Ints, starts: Ints) -> None:
        """Add operations that are not open yet."""
        keys = np.concatenate([self._keys, _key(comms, seqs)])
        order = np.argsort(keys, kind="stable")
        self._keys, self._starts = keys[order], np.concatenate([self._starts, starts])[order]

    def remove(self, comms: Ints, seqs: Ints) -> None:
        """Remove operations that are open."""
        at = np.searchsorted(self._keys, _key(comms, seqs))
        self._keys, self._starts = np.delete(self._keys, at), np.delete(self._starts, at)

    def surplus(self, comms: Ints) -> list[Ints]:
        """The first rows of the oldest operations of each of these communicators that has too many open."""
        comms = distinct(comms)
        firsts, ends = np.searchsorted(self._keys, [comms << SEQ_BITS, (comms + 1) << SEQ_BITS])
        over = np.flatnonzero(ends - firsts > _OPS_KEPT)
        spans = zip(firsts[over].tolist(), ends[over].tolist(), strict=True)
        return [self._starts[first : end - _OPS_KEPT] for first, end in spans]


def _key(comms: Ints, seqs: Ints) -> Ints:
    keys: Ints = (comms << SEQ_BITS) | seqs
    return keys
