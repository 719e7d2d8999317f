"""The text that models train on, as bytes, and the batches that are drawn from it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from c4bench.errors import UsageError
from c4bench.workload.models.protocol import Tokens

# Its source and licence are in the README.md beside it.
TEXT = Path(__file__).parent / "text" / "paradise-lost.txt"
SHA256 = "8bec100ff6f41200ff398800914ee1535c689503970f86ef95d0c8f0236a3291"
_TRAINED_ON = 0.9  # of the text; the rest, its end, is for validation


@dataclass(frozen=True)
class Corpus:
    """The two parts of the text. No batch crosses from one to the other."""

    training: NDArray[np.uint8]
    validation: NDArray[np.uint8]

    def batch(self, seed: int, step: int, rank: int, sequences: int, length: int) -> Tokens:
        """What a rank trains on in a step: `sequences` random places, `length` inputs each, by these numbers alone."""
        begins = default_rng([seed, step, rank]).integers(0, self.training.size - length, sequences)
        return _cut(self.training, begins, length)

    def held_out(self, sequences: int, length: int) -> Tokens:
        """The same `sequences` places of `length` inputs each time, evenly over the part for validation."""
        begins = np.arange(sequences) * (self.validation.size - length) // sequences
        return _cut(self.validation, begins, length)


def load(path: Path = TEXT) -> Corpus:
    """Read the text. Raises UsageError if it is missing, or is not the one with the known SHA-256."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the text cannot be read: {error.strerror}; install c4bench again") from None
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise UsageError(
            f"{path}: the text is cut or changed ({len(content)} bytes, other SHA-256); install c4bench again"
        )
    tokens = np.frombuffer(content, np.uint8)
    end = int(_TRAINED_ON * tokens.size)
    return Corpus(tokens[:end], tokens[end:])


def _cut(text: NDArray[np.uint8], begins: NDArray[np.int64], length: int) -> Tokens:
    cut: Tokens = text[begins[:, None] + np.arange(length + 1)]
    return cut
