"""Chakra execution traces of one rank, and the PyTorch execution traces that they are made from.

Source: `et_def.proto` of MLCommons Chakra and its tools, and `execution_trace_observer.cpp` of PyTorch. A trace says
what was planned or has run, never that something hangs. Chakra has a protobuf form, that of its jsonizer (objects one
after the other, 64-bit numbers as text) and that of its feeder (`workload_graph`). One collective stands in it up to
three times: two nodes of the CPU, `(0)` and `(1)`, and the kernel's, which counts where there is one. In PyTorch's form
it stands as the operator, as `record_param_comms`, which has group and sizes, and as an annotation.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from msgspec.structs import replace

from c4bench.evidence.fields import integer, items, kind, mapping, objects, rank_in, ranks, real, text, width
from c4bench.evidence.limits import (
    LONGEST_TEXT,
    MOST_RANKS,
    MOST_VALUES,
    UnreadableError,
    json_data,
    json_data_or_cut,
    json_objects,
    short_name,
)
from c4bench.model.evidence import UNNAMED, Call, CallState, MemberEvidence, Problem, Reading, SourceFile

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
_COLLECTIVE, _COLLECTIVE_NAME = 7, "COMM_COLL_NODE"
_KINDS = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
          "reduce_scatter", "barrier")  # fmt: skip
_ID, _NAME, _TYPE, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 6, 7, 10
_WORLD = "0"
# The second node of the CPU of one collective.
_AGAIN = re.compile(r"\([1-9]\d{0,3}\)$")
_NUMBER_AT_END = re.compile(r"(\d{1,7})\.et$")


class _Node(NamedTuple):
    """A collective node; `kernel` says whether it is of the GPU, and None that the trace does not say so."""

    name: str
    start_us: int
    duration_us: int
    group: str
    call: str
    size_bytes: int
    kernel: bool | None


def recognises(_head: bytes, name: str) -> bool:
    """Whether a file is a trace in protobuf, by its name: the bytes have no mark."""
    return name.endswith(".et")


def read(data: bytes, file: str) -> Reading:
    """The collectives of the trace in `data`; its rank is the last number in the name. Raises UnreadableError."""
    messages = delimited(data)
    try:
        version = _version(next(messages, b""))
    except UnreadableError as error:
        raise UnreadableError(f"it is no trace in protobuf, or its first message is cut: {error}") from None
    found = _NUMBER_AT_END.search(PurePath(file).name)
    nodes, problems = list[_Node](), tuple[Problem, ...]()
    try:
        nodes += (node for message in messages if (node := _node(message)) is not None)
    except UnreadableError as error:
        if not nodes:
            raise
        problems = (Problem(file, error.reason, error.place),)
    return replace(_reading(nodes, file, integer(found[1]) if found else -1, version), problems=problems)


def _version(message: bytes) -> str:
    """The version in the first message: a field of its own, or the attribute `schema`; empty if it has neither."""
    for number, value in fields(message):
        if number == _ID:
            return short_name(as_text(value))
        if isinstance(value, bytes) and (found := _attribute(value))[0] == "schema":
            return short_name(as_text(found[1]))
    return ""


def recognises_json(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a trace as JSON."""
    if not head.lstrip().startswith(b"{"):
        return False
    return b'"workload_graph"' in head or (b'"attr"' in head and b"-chakra" in head and b'"schema"' in head)


def read_json(data: bytes, file: str) -> Reading:
    """The collectives of the trace in `data`, of the jsonizer or the feeder. Raises UnreadableError."""
    found, rest = json_objects(data)
    version, nodes = "", list[_Node]()
    for document in map(mapping, found):
        if "workload_graph" in document:
            nodes += [node for one in objects(document["workload_graph"]) if (node := _graph_node(one)) is not None]
        elif "type" in document or "id" in document:
            node = _json_node(document)
            nodes += [node] if node is not None else []
        else:
            version = short_name(text(_values(document).get("schema"))) or version
    reading = _reading(nodes, file, rank_in(file), version)
    problem = Problem(file, f"what follows is not used: {rest}", f"object {len(found) + 1}")
    return replace(reading, problems=(problem,)) if rest else reading


def _reading(nodes: Sequence[_Node], file: str, rank: int, version: str) -> Reading:
    """The collectives of some nodes, each once, by group."""
    known = 0 <= rank < MOST_RANKS
    groups: dict[str, list[_Node]] = {}
    for node in _once(nodes):
        groups.setdefault(node.group, []).append(node)
    members = tuple(_member(file, rank if known else -1, name, found) for name, found in groups.items())
    cannot = [_CANNOT] if known else [_CANNOT, _NO_RANK.format(file)]
    return Reading(members, (SourceFile(file, FORMAT, version, (rank,) if known else ()),), (), tuple(cannot))


_NO_RANK = "the rank of {}: neither the trace nor its name states it"


def _once(nodes: Sequence[_Node]) -> list[_Node]:
    """The kernels, or, where there are none, one node of the CPU for each collective."""
    kernels = [node for node in nodes if node.kernel]
    return kernels or [node for node in nodes if not _AGAIN.search(node.name)]


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
    start_us, duration_us = (max(0, as_signed(single.get(number, 0))) for number in (_START, _DURATION))
    on_cpu = attributes.get("is_cpu_op")
    return _collective(
        as_text(single.get(_NAME, b"")), start_us, duration_us, as_text(attributes.get("pg_name", b"")),
        as_signed(attributes.get("comm_type", b"")), as_signed(attributes.get("comm_size", b"")),
        None if on_cpu is None else on_cpu == 0,
    )  # fmt: skip


def _collective(
    name: str, start_us: int, duration_us: int, group: str, code: int, size_bytes: int, kernel: bool | None
) -> _Node:
    """A node by its values, of whatever form; `code` is that of the kind of collective, -1 where there is none."""
    called = _KINDS[code] if 0 <= code < len(_KINDS) else short_name(kind(name.partition("(")[0]))
    return _Node(name, start_us, duration_us, short_name(group) or _WORLD, called, size_bytes, kernel)


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


def _values(document: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node, by name: each has its value under the name of its type, or as `value`."""
    return {
        text(one.get("name")): next((value for key, value in one.items() if key.endswith(("Val", "value"))), None)
        for one in (*objects(document.get("attr")), *objects(document.get("attrs")))
    }


def _json_node(document: Mapping[str, Any]) -> _Node | None:
    """A node as the jsonizer writes it; None if it is no collective."""
    if document.get("type") not in (_COLLECTIVE, _COLLECTIVE_NAME):
        return None
    values = _values(document)
    on_cpu = values.get("is_cpu_op")
    start_us, took_us = (max(0, integer(document.get(key), 0)) for key in ("startTimeMicros", "durationMicros"))
    return _collective(
        text(document.get("name")), start_us, took_us, text(values.get("pg_name")), integer(values.get("comm_type")),
        integer(values.get("comm_size")), on_cpu is False if isinstance(on_cpu, bool) else None,
    )  # fmt: skip


def _graph_node(document: Mapping[str, Any]) -> _Node | None:
    """A node as the feeder writes it; None if it is no collective."""
    if integer(document.get("NodeType")) != _COLLECTIVE:
        return None
    on_cpu = document.get("is_cpu_op")
    return _collective(
        text(document.get("Name")), 0, max(0, int(real(document.get("runtime"), 0.0))), text(document.get("pg_name")),
        integer(document.get("comm_type")), integer(document.get("comm_size")),
        not on_cpu if isinstance(on_cpu, bool | int) else None,
    )  # fmt: skip


def _member(file: str, rank: int, name: str, nodes: list[_Node]) -> MemberEvidence:
    ordered = sorted(nodes, key=lambda node: node.start_us)
    calls = tuple(
        Call(seq, node.call, CallState.COMPLETED, size_bytes=node.size_bytes, created_s=node.start_us / 1e6,
             duration_s=node.duration_us / 1e6)
        for seq, node in enumerate(ordered)
    )  # fmt: skip
    return MemberEvidence(file, FORMAT, name, rank, calls=calls, last_seq=len(calls) - 1)


TORCH = "PyTorch execution trace"
_CANNOT_TORCH = (
    "PyTorch execution trace: it has neither times nor sequence numbers, so it shows neither a hang nor who is late; "
    "collectives are counted off"
)
_OF_TORCH = (b'"rf_id"', b'"ctrl_deps"', b'"start_ts"', b"[pytorch|profiler")
_COMMS, _GROUPS = "record_param_comms", "## process_group:init ##"
# Of these the number after the group in the arguments is the root, of all others the rank in the group.
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_NO_CALL = frozenset({"", "wait", "init"})


def recognises_torch(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is an execution trace of PyTorch."""
    named = b'"schema"' in head and b'"nodes"' in head
    return head.lstrip().startswith(b"{") and named and any(word in head for word in _OF_TORCH)


def read_torch(data: bytes, file: str) -> Reading:
    """The collectives of the trace in `data`, each once. Raises UnreadableError."""
    found, cut = json_data_or_cut(data)
    trace = mapping(found)
    if "nodes" not in trace:
        raise UnreadableError(cut or "it is no execution trace: it has no nodes")
    nodes = list(objects(trace["nodes"]))
    groups = {one[0]: one for node in nodes if text(node.get("name")) == _GROUPS for one in _listed(node)}
    comms = [one for node in sorted(nodes, key=_rf_id) if (one := _comms(node)) is not None]
    rank = rank_in(file)
    if rank < 0:
        rank = _rank_of(comms, groups)
    calls: dict[str, list[Call]] = {}
    sizes = {name: size for name, _, size in groups.values()}
    for one in comms:
        mine = calls.setdefault(one.group, [])
        elements = one.put_in * width(one.dtype) if one.put_in >= 0 else -1
        mine.append(Call(len(mine), one.called, CallState.COMPLETED, dtype=one.dtype, size_bytes=elements))
        sizes[one.group] = max(sizes.get(one.group, 0), one.size if one.size <= MOST_RANKS else 0)
    members = tuple(
        MemberEvidence(file, TORCH, name, rank, *_within(rank, groups.get(name)), sizes[name], calls=tuple(mine),
                       last_seq=len(mine) - 1)
        for name, mine in calls.items()
    )  # fmt: skip
    cannot = [_CANNOT_TORCH] if rank >= 0 else [_CANNOT_TORCH, _NO_RANK.format(file)]
    source = SourceFile(file, TORCH, short_name(text(trace.get("schema"))), (rank,) if rank >= 0 else ())
    problems = (Problem(file, cut),) if cut else ()
    return Reading(members, (source,), problems, tuple(cannot), min(sizes.get(_WORLD, 0), MOST_RANKS))


class _Comms(NamedTuple):
    """A collective: its group by name and size, the rank in it (-1: not known), and the elements that it was given."""

    called: str
    group: str
    size: int
    member: int
    dtype: str
    put_in: int


def _comms(node: Mapping[str, Any]) -> _Comms | None:
    """The collective of a node; None for any other node."""
    if text(node.get("name")) != _COMMS:
        return None
    values = _values(node)
    given = items(mapping(node.get("inputs")).get("values")) or items(node.get("inputs"))
    place = next((at for at, value in enumerate(given) if _is_group(value)), -1)
    named = next((value for value in given[place + 1 :] if isinstance(value, str)), "")
    called = short_name(kind(text(values.get("collective_name")) or text(named)))
    group = short_name(text(values.get("pg_name")) or (text(items(given[place])[0]) if place >= 0 else ""))
    if called in _NO_CALL:
        return None
    number = integer(given[place + 1]) if 0 <= place < len(given) - 1 else -1
    return _Comms(
        called, group or UNNAMED, max(0, integer(values.get("pg_size"), 0)), -1 if called in _ROOTED else number,
        short_name(text(values.get("dtype")).lower()), integer(values.get("in_msg_nelems")),
    )  # fmt: skip


def _is_group(value: object) -> bool:
    """Whether an argument is a group: its name and its description."""
    pair = items(value)
    return len(pair) == 2 and all(isinstance(one, str) for one in pair)


def _rf_id(node: Mapping[str, Any]) -> int:
    """The number of a node in the order of calls."""
    return integer(_values(node).get("rf_id"), integer(node.get("rf_id")))


_Group = tuple[str, tuple[int, ...], int]


def _listed(node: Mapping[str, Any]) -> Iterator[_Group]:
    """The groups that a node lists: name, ranks of the job, and how many; a list without ranks is of all of them."""
    for value in items(mapping(node.get("inputs")).get("values")) or items(node.get("inputs")):
        for one in objects(_embedded(value)):
            name, size = short_name(text(one.get("pg_name"))), max(0, integer(one.get("group_size"), 0))
            yield name, ranks(one.get("ranks")), min(size, MOST_RANKS)


def _embedded(value: object) -> object:
    """The data in a text of JSON; nothing for anything else."""
    try:
        return json_data(value.encode()) if isinstance(value, str) else ()
    except (UnreadableError, UnicodeError):
        return ()


def _rank_of(comms: Sequence[_Comms], groups: Mapping[str, _Group]) -> int:
    """The rank in the job that most collectives show: that in the group of all, or the job's rank in another; or -1."""
    shown: Counter[int] = Counter()
    for one in comms:
        listed = groups.get(one.group, ("", (), 0))[1]
        if 0 <= one.member < len(listed):
            shown[listed[one.member]] += 1
        elif one.group == _WORLD and 0 <= one.member < MOST_RANKS:
            shown[one.member] += 1
    return shown.most_common(1)[0][0] if shown else -1


def _within(rank: int, group: _Group | None) -> tuple[int, tuple[int, ...]]:
    """The place of a rank in a group, and the group's ranks; -1 and none where it is not known to be in it."""
    return (group[1].index(rank), group[1]) if group and rank in group[1] else (-1, ())
