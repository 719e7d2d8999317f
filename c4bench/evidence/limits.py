"""The bounds of all that is read from strangers, and the only ways in which their bytes become data and values.

Numbers may be texts, texts may be quoted twice, and anything may be missing.
"""

import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from c4bench.budget import FILE
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.foreign_text import file_name, one_line

MOST_BYTES = FILE.bytes  # of a file, also after decompression
MOST_FILES = 200_000  # and folders
MOST_VALUES = FILE.records  # numbers, texts, lists and objects in a file
MOST_OBJECTS = FILE.names
LONGEST_TEXT = 8 << 20  # bytes; the text of the ranks of a job of a million
MOST_BITS = 64  # of an integer
MOST_LINES = 1_000_000  # of a text that is judged line by line
MOST_RANKS = FILE.names
LONGEST_NAME = 80  # characters
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_DIGITS = 20
_LARGEST = 1 << (MOST_BITS - 1)


class UnreadableError(Exception):
    """Bytes that cannot be used: why, and at which `place` of the file."""

    def __init__(self, reason: str, place: str = "") -> None:
        self.reason, self.place = reason, place
        super().__init__(f"{place}: {reason}" if place else reason)


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file, decompressed if it is gzip. Raises UnreadableError."""
    if path.is_fifo():
        raise UnreadableError("it is a pipe; give --follow")
    try:
        data = read_bounded(path)
    except UsageError as error:
        raise UnreadableError(str(error).removeprefix(f"{file_name(path)}: ")) from None
    if not data:
        raise UnreadableError("it is empty")
    return unpacked(data)


def unpacked(data: bytes) -> bytes:
    """The bytes themselves, decompressed if they are gzip. Raises UnreadableError."""
    return gunzip(data) if data.startswith(_GZIP) else data


def gunzip(data: bytes, most: int | None = None) -> bytes:
    """The content of gzip data, of `most` bytes (a file's); what is left if it is cut. Raises UnreadableError."""
    most = MOST_BYTES if most is None else most
    decoder, out = zlib.decompressobj(zlib.MAX_WBITS | 16), io.BytesIO()
    try:
        for at in range(0, len(data), _CHUNK):
            todo = data[at : at + _CHUNK]
            while todo:
                out.write(decoder.decompress(todo, _CHUNK))
                if out.tell() > most:
                    raise UnreadableError(f"it has more than {most >> 20} MiB when decompressed")
                todo = decoder.unconsumed_tail
    except zlib.error as error:
        if not out.tell():
            raise UnreadableError(f"it cannot be decompressed: {error}") from None
    return out.getvalue()


def json_data(data: bytes) -> object:
    """The plain data in JSON text; anything may have any type. Raises UnreadableError."""
    # No text has more objects or values than bytes.
    if len(data) > MOST_OBJECTS and _has_too_many(data):
        raise UnreadableError(f"it has more than {MOST_OBJECTS} objects or {MOST_VALUES} values")
    try:
        return from_json(data, object)
    except DecodingError as error:
        raise UnreadableError(f"it is no JSON text: {error}") from None


def _has_too_many(data: bytes) -> bool:
    return data.count(b"{") > MOST_OBJECTS or data.count(b",") + data.count(b"[") > MOST_VALUES


def short_name(name: str) -> str:
    """A name out of a stranger's file, fit to be printed: short, and without control characters."""
    return one_line(name, LONGEST_NAME)


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


_RANK = re.compile(r"rank[_.-]?(\d{1,7})", re.IGNORECASE)
# Of TensorBoard's traces, `HOST_PID.NANOSECONDS.pt.trace.json`, and of names that say so, a number is a process id.
_PID = re.compile(r"pid|_\d{1,7}\.\d{13,20}\.", re.IGNORECASE)


def rank_in(file: str) -> int:
    """The rank of which a file is, by its name: the number after `rank`, else the only one before the first dot, or -1.

    A process id is no rank, and of two numbers neither is known to be one.
    """
    name = PurePath(file).name
    if stated := _RANK.findall(name):
        return _in_bounds(stated[-1])
    numbers = re.findall(r"\d+", name.partition(".")[0])
    return _in_bounds(numbers[0]) if len(numbers) == 1 and not _PID.search(name) else -1


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
    "all_to_allv": "all_to_all",
}
