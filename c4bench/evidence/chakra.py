"""Chakra execution traces: the nodes of collectives of one rank, in the order of their starts.

Source: `et_def.proto` of MLCommons Chakra. A trace says what was planned or has run, never that something hangs.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from c4bench.evidence.fields import integer
from c4bench.evidence.limits import LONGEST_TEXT, MOST_RANKS, MOST_VALUES, UnreadableError, short_name
from c4bench.model.evidence import Call, CallState, MemberEvidence, Reading, SourceFile

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


FORMAT = "Chakra trace"
_CANNOT = "Chakra trace: it has no sequence numbers, so the collectives of a group are counted off by their starts"
_COLLECTIVE = 7
_KINDS = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
          "reduce_scatter", "barrier")  # fmt: skip
_ID, _NAME, _TYPE, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 6, 7, 10
_WORLD = "0"


class _Node(NamedTuple):
    start_us: int
    duration_us: int
    group: str
    call: str
    size_bytes: int


def recognises(_head: bytes, name: str) -> bool:
    """Whether a file is a trace, by its name: the bytes have no mark."""
    return name.endswith(".et")


def read(data: bytes, file: str) -> Reading:
    """The collectives of the trace in `data`; its rank is the last number in the name. Raises UnreadableError."""
    messages = delimited(data)
    version = next((short_name(as_text(value)) for number, value in fields(next(messages, b"")) if number == _ID), "")
    numbers = re.findall(r"\d+", PurePath(file).name.removesuffix(".et"))
    rank = integer(numbers[-1]) if numbers else -1
    if not 0 <= rank < MOST_RANKS:
        raise UnreadableError("which rank it is of is not known; end its name with the rank, such as trace.3.et")
    groups: dict[str, list[_Node]] = {}
    for message in messages:
        if (node := _node(message)) is not None:
            groups.setdefault(node.group, []).append(node)
    members = tuple(_member(file, rank, name, nodes) for name, nodes in groups.items())
    return Reading(members, (SourceFile(file, FORMAT, version, (rank,)),), (), (_CANNOT,))


def _node(message: bytes) -> _Node | None:
    """A collective; None for any other node."""
    single: dict[int, int | bytes] = {}
    attributes: dict[str, int | bytes] = {}
    for number, value in fields(message):
        if number == _ATTRIBUTE and isinstance(value, bytes):
            name, found = _attribute(value)
            attributes[name] = found
        else:
            single[number] = value
    if single.get(_TYPE) != _COLLECTIVE:
        return None
    code = as_signed(attributes.get("comm_type", b""))
    called = _KINDS[code] if 0 <= code < len(_KINDS) else short_name(as_text(single.get(_NAME, b"")))
    group = short_name(as_text(attributes.get("pg_name", b""))) or _WORLD
    start_us, duration_us = (max(0, as_signed(single.get(number, 0))) for number in (_START, _DURATION))
    return _Node(start_us, duration_us, group, called, as_signed(attributes.get("comm_size", b"")))


def _attribute(message: bytes) -> tuple[str, int | bytes]:
    """Name and value of an attribute, whatever the value's type."""
    name, found = "", b""
    result: int | bytes = found
    for number, value in fields(message):
        if number == _ID:
            name = as_text(value)
        elif number != _NAME:
            result = value
    return name, result


def _member(file: str, rank: int, name: str, nodes: list[_Node]) -> MemberEvidence:
    ordered = sorted(nodes, key=lambda node: node.start_us)
    calls = tuple(
        Call(seq, node.call, CallState.COMPLETED, size_bytes=node.size_bytes, created_s=node.start_us / 1e6,
             duration_s=node.duration_us / 1e6)
        for seq, node in enumerate(ordered)
    )  # fmt: skip
    return MemberEvidence(file, FORMAT, name, rank, calls=calls, last_seq=len(calls) - 1)
