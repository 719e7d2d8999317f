"""The fields of a protobuf message, without a schema and within bounds (protobuf.dev, "Encoding")."""

import struct
from collections.abc import Iterator

from c4bench.evidence.limits import LONGEST_TEXT, MOST_VALUES, UnreadableError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends. Raises UnreadableError."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            raise UnreadableError("the message is cut", f"byte {at}")
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise UnreadableError("a number has more than 64 bits", f"byte {at}")


def delimited(data: bytes) -> Iterator[bytes]:
    """The messages of a file in which each follows its length. Raises UnreadableError."""
    at = count = 0
    while at < len(data):
        length, at = varint(data, at)
        if at + length > len(data):
            raise UnreadableError("the last message is cut", f"byte {at}")
        count += 1
        if count > MOST_VALUES:
            raise UnreadableError(f"it has more than {MOST_VALUES} messages")
        yield data[at : at + length]
        at += length


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the value of each field; floating-point ones as their bytes. Raises UnreadableError."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = varint(message, at)
        elif wire in {_FIXED64, _FIXED32}:
            length = 8 if wire == _FIXED64 else 4
        else:
            raise UnreadableError(f"it has wire type {wire}", f"byte {at}")
        if at + length > len(message):
            raise UnreadableError("a field is cut", f"byte {at}")
        yield number, message[at : at + length]
        at += length


def as_text(value: int | bytes) -> str:
    """The text of a field; empty if it is none."""
    return value[:LONGEST_TEXT].decode("utf-8", "replace") if isinstance(value, bytes) else ""


def as_signed(value: int | bytes) -> int:
    """The integer of a field; -1 if it is none."""
    if isinstance(value, bytes):
        return -1
    return int(struct.unpack("<q", struct.pack("<Q", value))[0])
