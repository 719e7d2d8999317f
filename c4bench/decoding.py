"""Decode what somebody else has written: whatever is wrong with it, a `DecodingError` says so in one line.

`msgspec`, PyYAML, `json` and `int` raise many kinds of errors: for what is no text, for deep nesting, for a 13th month,
for a number of 5,000 digits. Nothing but `decoding` turns them into ours.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import yaml

from c4bench.errors import UsageError
from c4bench.foreign_text import one_line

T = TypeVar("T")
# The digits of a 64-bit integer.
_MOST_DIGITS = 20
# ValueError has UnicodeError, OverflowError is what a number gives that is too large for its type.
_DECODING = (msgspec.MsgspecError, yaml.YAMLError, ValueError, RecursionError, OverflowError, struct.error, zlib.error)
_LONGEST_REASON = 300


class DecodingError(UsageError):
    """What somebody wrote cannot be decoded: why, and in which `line` (from 1; None where that is not known)."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(reason)


@contextmanager
def decoding() -> Iterator[None]:
    """Within the block, every error that decoding raises becomes a DecodingError, in one line of printable text."""
    try:
        yield
    except RecursionError:
        raise DecodingError("it is nested too deeply") from None
    except _DECODING as error:
        mark = getattr(error, "problem_mark", None)
        reason = one_line(" ".join(str(error).split()), _LONGEST_REASON)
        raise DecodingError(reason or type(error).__name__, mark.line + 1 if mark else None) from None


def from_yaml(text: str | bytes, kind: type[T] = object) -> T:  # type: ignore[assignment]
    """The `kind` in YAML text, by default data of plain types of any form. Raises DecodingError."""
    with decoding():
        data = yaml.safe_load(text)
        return data if kind is object else msgspec.convert(data, kind)


def from_json(data: str | bytes, kind: type[T]) -> T:
    """The `kind` in JSON text. Raises DecodingError."""
    with decoding():
        return msgspec.json.decode(data, type=kind)


def from_msgpack(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """The `kind` in MessagePack. Raises DecodingError."""
    with decoding():
        return msgspec.msgpack.decode(data, type=kind)


def json_in(output: str | bytes, kind: type[T]) -> T:
    """The `kind` in the JSON text that a command printed, which lines of other text may stand before.

    Raises DecodingError.
    """
    with decoding():
        text = output.decode() if isinstance(output, bytes) else output
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith(("{", "["))), 0)
    return from_json("".join(lines[first:]), kind)


def whole_number(text: str) -> int:
    """The decimal integer in `text`, of 20 digits at most. Raises DecodingError."""
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal() or len(digits) > _MOST_DIGITS:
        raise DecodingError(f"{one_line(digits, 40)!r} is no whole number of up to {_MOST_DIGITS} digits")
    return int(digits)
