"""Kineto traces (PyTorch's profiler): the collective metadata of `record_param_comms` events and of NCCL's kernels.

Source: `torch/csrc/distributed/c10d/ParamCommsUtils.hpp` and libkineto. Texts may be quoted twice. A trace has finished
operations only. Without `Seq` the operations of a group are counted off, which is right if the trace has all of them.
Times are microseconds since `baseTimeNanoseconds`, or since 1970 where there is none.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from c4bench.evidence.fields import integer, kind, mapping, objects, rank_in, ranks, real, text, width
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data, short_name
from c4bench.model.evidence import Call, CallState, MemberEvidence, Reading, SourceFile

FORMAT = "Kineto trace"
_CANNOT = "Kineto trace: only finished operations are in it, so it does not show a hang"
_MICRO = 1e-6
_COMMS = "record_param_comms"


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a trace."""
    return head.lstrip().startswith(b"{") and (b'"traceEvents"' in head or b'"distributedInfo"' in head)


def read(data: bytes, file: str) -> Reading:
    """The collectives of the trace in `data`. Raises UnreadableError."""
    trace = mapping(json_data(data))
    if "traceEvents" not in trace:
        raise UnreadableError("it is no Kineto trace: it has no traceEvents")
    info = mapping(trace.get("distributedInfo"))
    rank = integer(info.get("rank"), rank_in(file))
    if not 0 <= rank < MOST_RANKS:
        raise UnreadableError("which rank it is of is not known; end its name with the rank, such as rank_3.json")
    base_s = max(0, integer(trace.get("baseTimeNanoseconds"), 0)) * _MICRO / 1000
    groups: dict[str, tuple[tuple[int, ...], int]] = {}
    calls: dict[str, tuple[dict[int, Call], dict[int, Call]]] = {}
    for event in objects(trace["traceEvents"]):
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
    evidence = tuple(_member(file, rank, name, *groups[name], *mine) for name, mine in calls.items())
    world = min(max(0, integer(info.get("world_size"), 0)), MOST_RANKS)
    return Reading(evidence, (SourceFile(file, FORMAT, "", (rank,)),), (), (_CANNOT,), world)


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
    """A call, which on NCCL returns before it has ended, with the time of its kernel where there is one."""
    return msgspec.structs.replace(call, duration_s=kernel.duration_s, finished_s=kernel.finished_s) if kernel else call


def _member(
    file: str, rank: int, name: str, members: tuple[int, ...], size: int, calls: Mapping[int, Call],
    kernels: Mapping[int, Call],
) -> MemberEvidence:  # fmt: skip
    known = members if rank in members else ()
    found = {**kernels, **{seq: _ended(call, kernels.get(seq)) for seq, call in calls.items()}}
    ordered = tuple(found[seq] for seq in sorted(found))
    member = known.index(rank) if known else -1
    return MemberEvidence(
        file, FORMAT, name, rank, member, known, len(known) or size, calls=ordered, last_seq=ordered[-1].seq
    )
