"""Integer payloads whose collectives are exact in every data type, and the check of every element.

At each index, the item of rank r of `size` is base + spread. The base depends on the index. The spreads are the numbers
-(size - 1), ..., size - 1 in steps of two, a different one for each rank. So the sum is size x base, the average is
base, and the extremes are base -+ (size - 1). No item is zero, so a missing contribution is always detected. Partial
sums are integers that the data type represents exactly.

The payload repeats after a prime number of items, which no chunk length divides, so a misplaced chunk is detected.
Arrays are written and compared one period at a time, because first touching a page is expensive in a lab.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from c4bench.errors import UsageError

Array = NDArray[Any]

_PERIOD = 16381
_STRIDE = 5501  # each step shifts the index by this
_LARGEST_BASE = 255
# All integers up to here are exact; 24 bits are those of float32, and enough for other types.
_EXACT = {"bfloat16": 1 << 8, "float16": 1 << 11}
_EXACT_ELSEWHERE = 1 << 24


class Payload(NamedTuple):
    """The inputs of `size` ranks in one step. `first` is the index of an array's first item."""

    size: int
    step: int = 0

    def fill(self, array: Array, rank: int, first: int = 0) -> None:
        """Write the input of `rank`."""
        for stretch, expected in self._beside(array, _input(self.size, rank, array.dtype), first):
            np.copyto(stretch, expected)

    def exact_input(self, array: Array, rank: int, first: int = 0) -> int:
        """How many elements equal the input of `rank`."""
        return self._exact(array, _input(self.size, rank, array.dtype), first)

    def exact_reduced(self, array: Array, op: str = "sum", first: int = 0) -> int:
        """How many elements equal the reduction of all ranks' inputs."""
        return self._exact(array, _reduced(self.size, op, array.dtype), first)

    def _exact(self, array: Array, period: Array, first: int) -> int:
        return sum(
            int(np.count_nonzero(stretch == expected)) for stretch, expected in self._beside(array, period, first)
        )

    def _beside(self, array: Array, period: Array, first: int) -> Iterator[tuple[Array, Array]]:
        """The array in slices, each with the matching slice of the period."""
        offset, start = (first + self.step * _STRIDE) % _PERIOD, 0
        while start < array.size:
            stretch = array[start : start + _PERIOD - offset]
            yield stretch, period[offset : offset + stretch.size]
            offset, start = 0, start + stretch.size


def _base(size: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """Numbers of the parity that makes no item zero, and small enough for exact sums of `size` ranks."""
    exact = _EXACT.get(str(dtype), _EXACT_ELSEWHERE)
    choices = np.arange(2 - size % 2, min(_LARGEST_BASE, (exact - size * size // 4) // size) + 1, 2)
    if not choices.size:
        raise UsageError(f"sums over {size} ranks are not exact in {dtype}; use fewer ranks, or a wider type")
    return choices[default_rng(1).integers(choices.size, size=_PERIOD)]


@lru_cache(maxsize=64)
def _input(size: int, rank: int, dtype: np.dtype[Any]) -> Array:
    dealt = (default_rng(2).integers(size, size=_PERIOD) + rank) % size
    return (_base(size, dtype) + 2 * dealt - (size - 1)).astype(dtype)


@lru_cache(maxsize=64)
def _reduced(size: int, op: str, dtype: np.dtype[Any]) -> Array:
    base = _base(size, dtype)
    reduced = {"sum": size * base, "avg": base, "min": base - (size - 1), "max": base + (size - 1)}
    return reduced[op].astype(dtype)
