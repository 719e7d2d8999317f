"""NCCL Inspector's JSON lines (format v4.0): operations that one process has finished, with how long they took.

Source: NCCL's `plugins/profiler/inspector`. Operations under its size limit, 8192 bytes by default, have no line.
`coll_sn` counts the calls of each kind by themselves, so that each kind of a communicator is one here. A line is
written some time after its operation has ended; only `NCCL_INSPECTOR_DUMP_VERBOSE` adds when it began and ended.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from c4bench.evidence.fields import integer, kind, mapping, objects, real, text
from c4bench.evidence.limits import MOST_LINES, MOST_RANKS, UnreadableError, json_data, short_name
from c4bench.model.evidence import Call, CallState, MemberEvidence, Problem, Reading, SourceFile

FORMAT = "NCCL Inspector"
_CANNOT = (
    "NCCL Inspector: only finished operations are logged, so it does not show a hang; those under 8192 bytes "
    "(or its own limit) are missing"
)


class _Member(NamedTuple):
    comm: str
    rank: int
    size: int
    host: str
    pid: int


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a log of the Inspector."""
    return (head.lstrip().startswith(b"{") and b'"coll_perf"' in head) or b'"inspector_output_format_version"' in head


def read(data: bytes, file: str) -> Reading:
    """The log in `data`; lines that are cut are problems. Raises UnreadableError if no line can be read."""
    calls: dict[_Member, list[Call]] = {}
    bad: list[int] = []
    version = "unknown"
    if data.count(b"\n") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            document = mapping(json_data(line))
        except UnreadableError:
            bad.append(number)
            continue
        version = short_name(text(mapping(document.get("metadata")).get("inspector_output_format_version"))) or version
        if (found := _line(document)) is not None:
            calls.setdefault(found[0], []).append(found[1])
        elif "p2p_perf" not in document:
            bad.append(number)
    if not calls:
        raise UnreadableError("none of its lines is a finished collective", "line 1")
    members = tuple(_evidence(member, mine, file) for member, mine in calls.items())
    problems = (Problem(file, f"{len(bad)} lines cannot be used", f"line {bad[0]}"),) if bad else ()
    return Reading(members, (SourceFile(file, FORMAT, version, ()),), problems, (_CANNOT,))


def _line(document: Mapping[str, Any]) -> tuple[_Member, Call] | None:
    """The member and the call of a line; None if it lacks what identifies them."""
    header, meta = mapping(document.get("header")), mapping(document.get("metadata"))
    perf = mapping(document.get("coll_perf"))
    seq, rank = integer(perf.get("coll_sn")), integer(header.get("rank"))
    comm = short_name(text(header.get("id"))) or str(integer(header.get("id")))
    if seq < 0 or not 0 <= rank < MOST_RANKS or comm == "-1":
        return None
    took_us = real(perf.get("coll_exec_time_us"))
    began_us, ended_us = _times_us(mapping(perf.get("event_trace_ts")))
    called = _kind(text(perf.get("coll")))
    call = Call(
        seq,
        called,
        CallState.COMPLETED,
        size_bytes=integer(perf.get("coll_msg_size_bytes")),
        created_s=began_us / 1e6,
        duration_s=took_us / 1e6 if took_us >= 0 else -1.0,
        finished_s=(ended_us or max(0.0, real(meta.get("dump_timestamp_us"), 0.0))) / 1e6,
    )
    host, pid = short_name(text(meta.get("hostname"))), integer(meta.get("pid"))
    return _Member(f"{comm} {called}", rank, max(0, integer(header.get("n_ranks"), 0)), host, pid), call


def _times_us(trace: Mapping[str, Any]) -> tuple[float, float]:
    """When the call began and when its last kernel stopped; 0 if that is not known."""
    if not trace:
        return 0.0, 0.0
    stopped_us = 0.0
    for kernel in objects(trace.get("kernel_events")):
        stopped_us = max(stopped_us, real(kernel.get("kernel_stop_ts"), 0.0))
    return max(0.0, real(trace.get("coll_start_ts"), 0.0)), stopped_us


@lru_cache(maxsize=1024)
def _kind(name: str) -> str:
    return short_name(kind(name))


def _evidence(member: _Member, calls: list[Call], file: str) -> MemberEvidence:
    ordered = tuple(sorted({call.seq: call for call in calls}.values(), key=lambda call: call.seq))
    return MemberEvidence(
        file, FORMAT, member.comm, member=member.rank, size=member.size, host=member.host, pid=member.pid,
        calls=ordered, last_seq=ordered[-1].seq,
    )  # fmt: skip
