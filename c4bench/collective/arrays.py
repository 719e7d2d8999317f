"""Check the arrays of a collective, and reduce them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from c4bench.collective.handshake import DTYPES
from c4bench.collective.memory import Array
from c4bench.errors import UsageError

_FLOATS = ("float32", "float64", "float16", "bfloat16")
REDUCIBLE = (*_FLOATS, "int32", "int64")
_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "avg": np.add}

Reduction = Callable[[Array, Array], None]


class Reducing(NamedTuple):
    """Functions `(into, arrived)` that reduce an arrival: `last` for the one that completes a segment, else `step`."""

    step: Reduction
    last: Reduction


def flat(array: Array) -> Array:
    """A one-dimensional view. Raises UsageError for an array that is not C-contiguous or of an unsupported type."""
    if str(array.dtype) not in DTYPES:
        raise UsageError(f"arrays of {array.dtype} are not supported; use one of {', '.join(DTYPES[1:])}")
    if not array.flags.c_contiguous:
        raise UsageError("an array must be C-contiguous; pass numpy.ascontiguousarray(array)")
    return array.reshape(-1)


def whole_and_part(whole: Array, part: Array, size: int) -> tuple[Array, Array]:
    """Flat views of two arrays of one type, the first `size` times the second. Raises UsageError if they differ."""
    if whole.dtype != part.dtype or whole.size != size * part.size:
        raise UsageError(f"{whole.size} items of {whole.dtype} are not {size} times {part.size} of {part.dtype}")
    return flat(whole), flat(part)


def equal_parts(first: Array, second: Array, size: int) -> tuple[Array, Array]:
    """Flat views of two arrays of one type and length that `size` divides. Raises UsageError for others."""
    if first.dtype != second.dtype or first.size != second.size or first.size % size:
        raise UsageError(
            f"{first.size} items of {first.dtype} and {second.size} of {second.dtype}: "
            f"give two arrays of one type and size, a multiple of {size} items"
        )
    return flat(first), flat(second)


def reducing(array: Array, op: str, size: int) -> Reducing:
    """How `op` reduces arrays like `array` over `size` ranks. Raises UsageError for an operation that cannot.

    `avg` divides the sum and rounds integers down.
    """
    kind = str(array.dtype)
    if op not in _UFUNCS or kind not in REDUCIBLE:
        raise UsageError(f"cannot reduce {kind} by {op!r}; {', '.join(_UFUNCS)} reduce {', '.join(REDUCIBLE)}")
    ufunc = _UFUNCS[op]

    def step(into: Array, arrived: Array) -> None:
        ufunc(into, arrived, out=into)

    if op != "avg":
        return Reducing(step, step)
    divide = np.divide if kind in _FLOATS else np.floor_divide
    divisor = array.dtype.type(size)

    def last(into: Array, arrived: Array) -> None:
        step(into, arrived)
        divide(into, divisor, out=into)

    return Reducing(step, last)
