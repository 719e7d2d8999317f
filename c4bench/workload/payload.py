"""Integer payloads small enough that sums are exact in every data type, and the check of every element.

Block by block, over one small pattern: a lab pays dearly for each page touched for the first time.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 14
_PATTERN = (np.arange(_BLOCK) % 1000).astype(np.float32)


def fill(array: NDArray[np.float32], rank: int, step: int) -> None:
    """Give every element a small integer that depends on its place, on the rank, and on the step."""
    for block, pattern in _blocks(array):
        np.add(pattern, np.float32(rank * (step + 1)), out=block)


def exact_elements(array: NDArray[np.float32], size: int, step: int) -> int:
    """How many elements hold the exact sum of what `size` ranks filled in."""
    ranks = np.float32((step + 1) * (size * (size - 1) // 2))
    expected = _PATTERN * np.float32(size) + ranks
    return sum(int(np.count_nonzero(block == expected[: block.size])) for block, _ in _blocks(array))


def _blocks(array: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    for start in range(0, array.size, _BLOCK):
        block = array[start : start + _BLOCK]
        yield block, _PATTERN[: block.size]
