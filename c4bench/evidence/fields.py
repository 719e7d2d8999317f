"""Single values out of a stranger's data: numbers that are texts, texts that are quoted twice, and what is missing."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from c4bench.evidence.limits import LONGEST_TEXT, MOST_BITS, MOST_RANKS

_DIGITS = 20
_LARGEST = 1 << (MOST_BITS - 1)


def integer(value: object, missing: int = -1) -> int:
    """The integer that `value` is, or is written as; `missing` for anything else and for what has over 64 bits."""
    if type(value) is int:
        return value if -_LARGEST < value < _LARGEST else missing
    if value is None:
        return missing
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return missing
    if isinstance(value, str):
        text = value.strip().strip('"')
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= _DIGITS):
            return missing
        value = int(text)
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return missing
    return int(value) if abs(value) < _LARGEST else missing


def real(value: object, missing: float = -1.0) -> float:
    """The finite number that `value` is, or is written as."""
    if type(value) is float:
        return value if math.isfinite(value) else missing
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else missing
    except (ValueError, OverflowError):
        return missing
    return number if math.isfinite(number) else missing


def text(value: object) -> str:
    """The text that `value` is, without the quotes of a second encoding; empty for anything else."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        return ""
    return value.strip().strip('"')


def mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> Sequence[Any]:
    """The elements of `value` if it is a list, else none."""
    return value if isinstance(value, list | tuple) else ()


def objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Those elements of a list that are objects."""
    return (item for item in items(value) if isinstance(item, dict))


def ranks(value: object) -> tuple[int, ...]:
    """Ranks in a list, or in a text such as `[0, 1]`; none if any of them is no rank."""
    return _ranks_in(value) if isinstance(value, str) else _ranks(items(value))


@lru_cache(maxsize=16)
def _ranks_in(value: str) -> tuple[int, ...]:
    """Ranks in a text. All dumps of a large job have the same text of all its ranks, which then is kept once."""
    return _ranks(value.strip().strip("[]").split(","))


def _ranks(parts: Sequence[object]) -> tuple[int, ...]:
    numbers = tuple(integer(part) for part in parts)
    return numbers if numbers and all(0 <= number < MOST_RANKS for number in numbers) else ()


_AT_END = re.compile(r"(?:^|[^A-Za-z0-9]|[A-Za-z]{3})(\d{1,7})$")
_RANK = re.compile(r"rank[_.-]?(\d{1,7})", re.IGNORECASE)
# Of TensorBoard's traces, `HOST_PID.NANOSECONDS.pt.trace.json`, and of names that say so, a number is something else.
_NO_RANK = re.compile(r"pid|step|iter|epoch|host|node|_\d{1,7}\.\d{13,20}\.", re.IGNORECASE)


def rank_in(file: str) -> int:
    """The rank of which a file is, by its name: the number after `rank`, else one at the end of the stem, or -1.

    A process id is no rank, a step is none, nor is a number within a word; of two numbers neither is known to be one.
    """
    name = PurePath(file).name
    if stated := _RANK.findall(name):
        return _in_bounds(stated[-1])
    stem = name.partition(".")[0]
    ends = _AT_END.search(stem)
    alone = ends and len(re.findall(r"\d+", stem)) == 1 and not _NO_RANK.search(name)
    return _in_bounds(ends[1]) if ends and alone else -1


def _in_bounds(digits: str) -> int:
    number = integer(digits)
    return number if number < MOST_RANKS else -1


_WIDTHS = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "long": 8,
    "int64": 8, "int": 4, "int32": 4, "short": 2, "int16": 2, "byte": 1, "uint8": 1, "char": 1, "int8": 1, "bool": 1,
}  # fmt: skip


def width(dtype: str) -> int:
    """Bytes of an element of PyTorch's or NCCL's data type; 1 of those not known, such as the 8-bit floats."""
    return _WIDTHS.get(dtype.lower(), 1)


@lru_cache(maxsize=1024)
def kind(name: str) -> str:
    """The collective that a name such as `nccl:_all_reduce` or `c10d::allreduce_` means; empty for none."""
    bare = name.rpartition(":")[2].partition(" ")[0].strip("_").lower()
    return _SPELLINGS.get(bare, bare)


_SPELLINGS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather_base": "all_gather_into_tensor",
    "allgather_base": "all_gather_into_tensor",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_allv": "all_to_all",
}
