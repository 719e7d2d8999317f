"""Chakra execution traces: the nodes of collectives of one rank, in the order of their starts.

Source: `et_def.proto` of MLCommons Chakra. A trace says what was planned or has run, never that something hangs.
"""

import re
from pathlib import PurePath
from typing import NamedTuple

from c4bench.evidence.fields import integer
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, short_name
from c4bench.evidence.protobuf import as_signed, as_text, delimited, fields
from c4bench.model.evidence import Call, CallState, MemberEvidence, Reading, SourceFile

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
