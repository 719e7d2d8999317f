"""Kineto traces (PyTorch's profiler): the collective metadata of `record_param_comms` events and of NCCL's kernels.

Source: `torch/csrc/distributed/c10d/ParamCommsUtils.hpp` and libkineto. Texts may be quoted twice. A trace has finished
operations only. Without `Seq` the operations of a group are counted off, which is right if the trace has all of them.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from c4bench.evidence.fields import integer, kind, mapping, objects, ranks, real, text, width
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data, place_of
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
    rank = _rank(info, file)
    if rank < 0:
        raise UnreadableError("which rank it is of is not known; end its name with the rank, such as rank_3.json")
    groups: dict[str, tuple[tuple[int, ...], int]] = {}
    calls: dict[str, dict[int, Call]] = {}
    for event in objects(trace["traceEvents"]):
        arguments = mapping(event.get("args"))
        name = place_of(text(arguments.get("Process Group Name")))
        called = kind(text(arguments.get("Collective name")))
        if not name or not called or called in {"init", "wait"}:
            continue
        members = ranks(arguments.get("Process Group Ranks"))
        groups[name] = members or groups.get(name, ((), 0))[0], max(0, integer(arguments.get("Group size"), 0))
        _note(calls.setdefault(name, {}), event, arguments, place_of(called))
    evidence = tuple(_member(file, rank, name, *groups[name], mine) for name, mine in calls.items())
    world = max(rank + 1, integer(info.get("world_size"), 0))
    return Reading(evidence, (SourceFile(file, FORMAT, "", (rank,)),), (), (_CANNOT,), min(world, MOST_RANKS))


def _rank(info: Mapping[str, Any], file: str) -> int:
    numbers = re.findall(r"\d+", PurePath(file).name.partition(".")[0])
    rank = integer(info.get("rank"), integer(numbers[-1]) if numbers else -1)
    return rank if rank < MOST_RANKS else -1


def _note(calls: dict[int, Call], event: Mapping[str, Any], arguments: Mapping[str, Any], called: str) -> None:
    """Add an event; the kernel of a call that is known adds how long it ran."""
    seq = integer(arguments.get("Seq"))
    seq = seq if seq >= 0 else len(calls)
    took_s = real(event.get("dur")) * _MICRO if real(event.get("dur")) >= 0 else -1.0
    if seq in calls and text(event.get("name")) != _COMMS:
        calls[seq] = msgspec.structs.replace(calls[seq], duration_s=took_s)
        return
    dtype = place_of(text(arguments.get("dtype")))
    elements = integer(arguments.get("In msg nelems"))
    calls[seq] = Call(
        seq,
        called,
        CallState.COMPLETED,
        dtype=dtype,
        size_bytes=elements * width(dtype) if elements >= 0 else -1,
        created_s=max(0.0, real(event.get("ts"), 0.0)) * _MICRO,
        duration_s=took_s,
    )


def _member(
    file: str, rank: int, name: str, members: tuple[int, ...], size: int, calls: Mapping[int, Call]
) -> MemberEvidence:
    known = members if rank in members else ()
    ordered = tuple(calls[seq] for seq in sorted(calls))
    member = known.index(rank) if known else -1
    return MemberEvidence(
        file, FORMAT, name, rank, member, known, len(known) or size, calls=ordered, last_seq=ordered[-1].seq
    )
