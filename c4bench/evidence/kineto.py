"""Kineto traces (PyTorch's profiler): the collective metadata of `record_param_comms` events and of NCCL's kernels.

Source: `torch/csrc/distributed/c10d/ParamCommsUtils.hpp` and libkineto. Texts may be quoted twice. A trace has finished
operations only. Traces of PyTorch up to 2.1 name neither groups nor kinds in arguments: there the kinds are those of
NCCL's kernels, and of the annotations `nccl:*` that launched these. Without `Seq` the operations of a group are counted
off, which is right if the trace has all of them. Times are microseconds since
`baseTimeNanoseconds`, or since 1970 where there is none.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from c4bench.evidence.fields import integer, items, kind, mapping, objects, rank_in, ranks, real, text, width
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data_or_cut, short_name
from c4bench.model.evidence import UNNAMED, Call, CallState, MemberEvidence, Problem, Reading, SourceFile

FORMAT = "Kineto trace"
_CANNOT = "Kineto trace: only finished operations are in it, so it does not show a hang"
_CANNOT_GROUPS = (
    "Kineto trace: it names no groups, so the collectives of each kind are counted off, and two files may count those "
    "of different groups"
)
_MICRO = 1e-6
# NCCL's kernels up to 2.18 and after, such as `ncclKernel_AllReduce_RING_LL_Sum_float` and `ncclDevKernel_SendRecv`.
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]{1,32})")
_KERNEL_CATEGORY = "kernel"
_ANNOTATION = ("nccl:", "gloo:", "ucc:", "mpi:")
_COMMS = "record_param_comms"


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a trace."""
    if head.lstrip().startswith(b"["):  # events alone, as some tools cut them out
        return b'"ph"' in head and any(word in head for word in (b'"External id"', b'"Collective name"'))
    return head.lstrip().startswith(b"{") and (b'"traceEvents"' in head or b'"distributedInfo"' in head)


def read(data: bytes, file: str) -> Reading:
    """The collectives of the trace in `data`. Raises UnreadableError."""
    found, cut = json_data_or_cut(data)
    trace = mapping({"traceEvents": found} if isinstance(found, list) else found)
    if "traceEvents" not in trace:
        raise UnreadableError(cut or "it is no Kineto trace: it has no traceEvents")
    info = mapping(trace.get("distributedInfo"))
    rank = integer(info.get("rank"), rank_in(file))
    known = 0 <= rank < MOST_RANKS
    base_s = max(0, integer(trace.get("baseTimeNanoseconds"), 0)) * _MICRO / 1000
    events = list(objects(trace["traceEvents"]))
    evidence = _with_groups(events, file, rank if known else -1, base_s)
    cannot = (
        [_CANNOT] if known else [_CANNOT, f"the rank of {file}: neither its distributedInfo nor its name states it"]
    )
    if not evidence and (evidence := _without_groups(events, file, rank if known else -1, base_s)):
        cannot.append(_CANNOT_GROUPS)
    world = min(max(0, integer(info.get("world_size"), 0)), MOST_RANKS)
    source = SourceFile(file, FORMAT, "", (rank,) if known else ())
    problems = (Problem(file, cut),) if cut else ()
    return Reading(evidence, (source,), problems, tuple(cannot), world)


def _with_groups(events: list[Mapping[str, Any]], file: str, rank: int, base_s: float) -> tuple[MemberEvidence, ...]:
    """The collectives by group, of traces that name these."""
    groups: dict[str, tuple[tuple[int, ...], int]] = {}
    calls: dict[str, tuple[dict[int, Call], dict[int, Call]]] = {}
    for event in events:
        arguments = mapping(event.get("args"))
        name = short_name(text(arguments.get("Process Group Name")))
        called = kind(text(arguments.get("Collective name")))
        if not name or not called or called in {"init", "wait"}:
            continue
        members = ranks(arguments.get("Process Group Ranks"))
        groups[name] = members or groups.get(name, ((), 0))[0], max(0, integer(arguments.get("Group size"), 0))
        mine = calls.setdefault(name, ({}, {}))[text(event.get("name")) != _COMMS]
        seq = integer(arguments.get("Seq"))
        seq = seq if seq >= 0 else len(mine)
        mine[seq] = _call(event, arguments, seq, base_s)
    return tuple(_member(file, rank, name, *groups[name], *mine) for name, mine in calls.items())


def _without_groups(events: list[Mapping[str, Any]], file: str, rank: int, base_s: float) -> tuple[MemberEvidence, ...]:
    """The collectives by kind, of older traces: those of NCCL's kernels, or of annotations where there are none.

    A kernel and the annotation that it was launched in have one external id.
    """
    named: dict[int, Mapping[str, Any]] = {}
    kernels: list[tuple[Mapping[str, Any], str]] = []
    for event in events:
        name = text(event.get("name"))
        number = integer(mapping(event.get("args")).get("External id"))
        if event.get("ph") == "X" and name.startswith(_ANNOTATION) and text(event.get("cat")) != _KERNEL_CATEGORY:
            named[number if number >= 0 else -2 - len(named)] = event
        elif event.get("ph") == "X" and (found := _KERNEL.match(name)):
            kernels.append((event, found[1]))
    if not kernels:
        kernels = [(event, "") for event in named.values()]
    calls: dict[str, list[Call]] = {}
    for event, of_kernel in sorted(kernels, key=lambda one: real(one[0].get("ts"), 0.0)):
        annotation = named.get(integer(mapping(event.get("args")).get("External id")), event if not of_kernel else {})
        called = short_name(kind(text(annotation.get("name"))) or kind(of_kernel))
        mine = calls.setdefault(called, [])
        call = _call(event, mapping(annotation.get("args")), len(mine), base_s)
        dtype, size_bytes = _put_in(mapping(annotation.get("args")))
        mine.append(msgspec.structs.replace(call, kind=called, dtype=dtype, size_bytes=size_bytes))
    return tuple(
        MemberEvidence(file, FORMAT, f"{UNNAMED} {called}", rank, calls=tuple(mine), last_seq=len(mine) - 1)
        for called, mine in calls.items()
    )


def _put_in(arguments: Mapping[str, Any]) -> tuple[str, int]:
    """Type and bytes of the first input of an annotation; nothing and -1 where it has none."""
    dtype = short_name(text(next(iter(items(arguments.get("Input type"))), "")))
    shape = items(next(iter(items(arguments.get("Input Dims"))), None))[:16]
    elements = math.prod(max(0, integer(length)) for length in shape) if shape else -1
    return dtype, elements * width(dtype) if elements >= 0 else -1


def _call(event: Mapping[str, Any], arguments: Mapping[str, Any], seq: int, base_s: float) -> Call:
    dtype = short_name(text(arguments.get("dtype")))
    elements = integer(arguments.get("In msg nelems"))
    began_s = base_s + max(0.0, real(event.get("ts"), 0.0)) * _MICRO
    took_s = real(event.get("dur")) * _MICRO if real(event.get("dur")) >= 0 else -1.0
    ended_s = began_s + took_s if took_s >= 0 and text(event.get("name")) != _COMMS else 0.0
    return Call(
        seq,
        short_name(kind(text(arguments.get("Collective name")))),
        CallState.COMPLETED,
        dtype=dtype,
        size_bytes=elements * width(dtype) if elements >= 0 else -1,
        created_s=began_s,
        duration_s=took_s,
        finished_s=ended_s,
    )


def _ended(call: Call, kernel: Call | None) -> Call:
    """A call, which on NCCL returns before it has ended, with the time of its kernel; -1 and 0 if that is missing."""
    took_s, ended_s = (kernel.duration_s, kernel.finished_s) if kernel else (-1.0, 0.0)
    return msgspec.structs.replace(call, duration_s=took_s, finished_s=ended_s)


def _member(
    file: str, rank: int, name: str, members: tuple[int, ...], size: int, calls: Mapping[int, Call],
    kernels: Mapping[int, Call],
) -> MemberEvidence:  # fmt: skip
    known = members if rank in members else ()
    ended = {seq: _ended(call, kernels.get(seq)) for seq, call in calls.items()} if kernels else calls
    found = {**kernels, **ended}
    ordered = tuple(found[seq] for seq in sorted(found))
    member = known.index(rank) if known else -1
    return MemberEvidence(
        file, FORMAT, name, rank, member, known, len(known) or size, calls=ordered, last_seq=ordered[-1].seq
    )
