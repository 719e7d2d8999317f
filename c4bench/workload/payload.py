"""Integer payloads whose collectives are exact in every data type, and the check of every element.

At each place, the item that rank r of `size` gives is base + spread. The base depends on the place; the spread deals
the numbers -(size - 1), ..., size - 1 in steps of two out to the ranks, another one to each. So the sum is size x base,
the average base, the extremes base -+ (size - 1); no item is zero, so that none can be left out unseen; and partial
sums are integers that the data type has.

All of it repeats after a prime number of items, which the length of no chunk divides: a piece in a wrong place shows.
Arrays are written and compared stretch by stretch beside one period, because a lab pays dearly for each page touched
for the first time.
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
_STRIDE = 5501  # by which each step shifts the place
_LARGEST_BASE = 255
# Up to here all integers are exact; 24 bits are float32's, and enough elsewhere.
_EXACT = {"bfloat16": 1 << 8, "float16": 1 << 11}
_EXACT_ELSEWHERE = 1 << 24


class Payload(NamedTuple):
    """What `size` ranks give in one step. `first` is the place of an array's first item."""

    size: int
    step: int = 0

    def fill(self, array: Array, rank: int, first: int = 0) -> None:
        """Write what `rank` gives."""
        for stretch, expected in self._beside(array, _given(self.size, rank, array.dtype), first):
            np.copyto(stretch, expected)

    def exact_given(self, array: Array, rank: int, first: int = 0) -> int:
        """How many elements are what `rank` gave."""
        return self._exact(array, _given(self.size, rank, array.dtype), first)

    def exact_reduced(self, array: Array, op: str = "sum", first: int = 0) -> int:
        """How many elements are the reduction of what all ranks gave."""
        return self._exact(array, _reduced(self.size, op, array.dtype), first)

    def _exact(self, array: Array, period: Array, first: int) -> int:
        return sum(
            int(np.count_nonzero(stretch == expected)) for stretch, expected in self._beside(array, period, first)
        )

    def _beside(self, array: Array, period: Array, first: int) -> Iterator[tuple[Array, Array]]:
        """The array in stretches, each beside its part of the period."""
        offset, start = (first + self.step * _STRIDE) % _PERIOD, 0
        while start < array.size:
            stretch = array[start : start + _PERIOD - offset]
            yield stretch, period[offset : offset + stretch.size]
            offset, start = 0, start + stretch.size


def _base(size: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """Numbers of the parity that keeps items from zero, and small enough for the sums of `size` ranks."""
    exact = _EXACT.get(str(dtype), _EXACT_ELSEWHERE)
    choices = np.arange(2 - size % 2, min(_LARGEST_BASE, (exact - size * size // 4) // size) + 1, 2)
    if not choices.size:
        raise UsageError(f"sums over {size} ranks are not exact in {dtype}; use fewer ranks, or a wider type")
    return choices[default_rng(1).integers(choices.size, size=_PERIOD)]


@lru_cache(maxsize=64)
def _given(size: int, rank: int, dtype: np.dtype[Any]) -> Array:
    dealt = (default_rng(2).integers(size, size=_PERIOD) + rank) % size
    return (_base(size, dtype) + 2 * dealt - (size - 1)).astype(dtype)


@lru_cache(maxsize=64)
def _reduced(size: int, op: str, dtype: np.dtype[Any]) -> Array:
    base = _base(size, dtype)
    reduced = {"sum": size * base, "avg": base, "min": base - (size - 1), "max": base + (size - 1)}
    return reduced[op].astype(dtype)
