"""NCCL Inspector's JSON lines (v4.0 to v4.3) and its metrics for Prometheus (v5): finished operations of one process.

Source: NCCL's `plugins/profiler/inspector`. Operations under its size limit, 8192 bytes by default, have no line.
`coll_sn` counts the calls of each kind by themselves, so that each kind of a communicator is one here. A line is
written some time after its operation has ended; only `NCCL_INSPECTOR_DUMP_VERBOSE` adds when it began and ended. From
v4.3 on a line of its own has the communicator of the lines after it, and how many records were dropped.

The metrics are averages over an interval, by GPU, communicator, kind and size, without ranks.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from c4bench.evidence.fields import integer, kind, mapping, objects, real, text
from c4bench.evidence.limits import MOST_LINES, MOST_RANKS, UnreadableError, json_data, json_objects, short_name
from c4bench.model.evidence import Call, CallState, MemberEvidence, Problem, Reading, SourceFile

FORMAT = "NCCL Inspector"
_CANNOT = (
    "NCCL Inspector: only finished operations are logged, so it does not show a hang; those under 8192 bytes "
    "(or its own limit) are missing"
)
_NAMELESS = ("", "unknown")


class _Member(NamedTuple):
    """A member of a communicator, whose name has the kind of its operations too."""

    comm: str
    rank: int
    size: int
    host: str
    pid: int


class _Marker(NamedTuple):
    """What the newest line with a header says, which holds for those after it."""

    header: Mapping[str, Any]
    meta: Mapping[str, Any]


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a log of the Inspector."""
    return (
        head.lstrip().startswith((b"{", b"[")) and b'"coll_perf"' in head
    ) or b'"inspector_output_format_version"' in head


class _Log:
    """What the lines of one file tell."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._marker = _Marker({}, {})
        self._dropped: dict[str, int] = {}
        self.calls: dict[_Member, list[Call]] = {}
        self.transfers: dict[_Member, list[Call]] = {}
        self.version = "unknown"

    def read(self, document: Mapping[str, Any]) -> bool:
        """Read a line; False if it tells nothing, or lacks what identifies it."""
        if "header" in document:
            self._marker = _Marker(mapping(document["header"]), mapping(document.get("metadata")))
            found = short_name(text(self._marker.meta.get("inspector_output_format_version")))
            self.version = found or self.version
        stats = mapping(document.get("dump_stats"))
        if dropped := sum(max(0, integer(stats.get(f"{what}_dropped_since_last_dump"), 0)) for what in ("coll", "p2p")):
            name = _comm(self._marker.header)
            self._dropped[name] = self._dropped.get(name, 0) + dropped
        perf, transfer = mapping(document.get("coll_perf")), mapping(document.get("p2p_perf"))
        if not perf and not transfer:
            return "dump_stats" in document
        call = _call(perf, "coll", self._marker) if perf else _call(transfer, "p2p", self._marker)
        member = _member(self._marker, call.kind if perf else "p2p")
        if member is None or call.seq < 0:
            return False
        (self.calls if perf else self.transfers).setdefault(member, []).append(call)
        return True

    def members(self) -> tuple[MemberEvidence, ...]:
        """The members, each with its operations in order, every one once."""
        found = []
        for member, calls in self.calls.items():
            ordered = tuple(sorted({call.seq: call for call in calls}.values(), key=lambda call: call.seq))
            found.append(self._evidence(member, ordered, ()))
        return (*found, *(self._evidence(member, (), tuple(calls)) for member, calls in self.transfers.items()))

    def _evidence(self, member: _Member, calls: tuple[Call, ...], transfers: tuple[Call, ...]) -> MemberEvidence:
        return MemberEvidence(
            self._file, FORMAT, member.comm, member=member.rank, size=member.size, host=member.host, pid=member.pid,
            calls=calls, transfers=transfers, last_seq=calls[-1].seq if calls else -1,
        )  # fmt: skip

    def lost(self) -> tuple[str, ...]:
        """What is said of records that were dropped."""
        return tuple(
            f"{self._file}: NCCL dropped {count} records of {name}: these operations are missing here, not in the job"
            for name, count in self._dropped.items()
        )


def read(data: bytes, file: str) -> Reading:
    """The log in `data`; lines that are cut are problems. Raises UnreadableError if no line can be read."""
    log, bad = _Log(file), list[int]()
    if data.count(b"\n") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    for number, document in _documents(data):
        if document is None or not log.read(document):
            bad.append(number)
    members = log.members()
    if not members:
        other = "" if log.version.startswith(("v4.", "unknown")) else f": it is {log.version}, of which v4 is read"
        raise UnreadableError(f"none of its lines is a finished operation{other}", "line 1")
    problems = (Problem(file, f"{len(bad)} lines cannot be used", f"line {bad[0]}"),) if bad else ()
    return Reading(members, (SourceFile(file, FORMAT, log.version, ()),), problems, (_CANNOT, *log.lost()))


def _documents(data: bytes) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """The objects, each with its line, of which there is one a line behind what a launcher may have put before it.

    Other tools have printed them over several lines, or as one list: there they are numbered. None is cut or none.
    """
    start = data.lstrip()
    if start.startswith(b"[") or re.match(rb"\{\s*\n", start):
        found, rest = json_objects(start)
        whole = found[0] if start.startswith(b"[") and isinstance(found[0], list) else found
        yield from enumerate(map(mapping, whole), start=1)
        if rest:
            yield len(whole) + 1, None
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, mapping(json_data(line[max(0, line.find(b"{")) :]))
            except UnreadableError:
                yield number, None


def _comm(header: Mapping[str, Any]) -> str:
    """A communicator: its name, where it has one, and its id; empty if it has no id."""
    name, number = short_name(text(header.get("comm_name"))), integer(header.get("id"))
    found = short_name(text(header.get("id"))) or ("" if number < 0 else str(number))
    return found if name in _NAMELESS or not found else f"{name} {found}"


def _member(marker: _Marker, called: str) -> _Member | None:
    """The member that a marker is of; None if it lacks what identifies one."""
    rank, comm = integer(marker.header.get("rank")), _comm(marker.header)
    if not 0 <= rank < MOST_RANKS or not comm:
        return None
    host, pid = short_name(text(marker.meta.get("hostname"))), integer(marker.meta.get("pid"))
    return _Member(f"{comm} {called}", rank, max(0, integer(marker.header.get("n_ranks"), 0)), host, pid)


def _call(perf: Mapping[str, Any], what: str, marker: _Marker) -> Call:
    """A finished collective (`what` is `coll`), send or receive (`p2p`)."""
    took_us = real(perf.get(f"{what}_exec_time_us"))
    began_us, ended_us = _times_us(mapping(perf.get("event_trace_ts")))
    dumped_us = max(0.0, real(marker.meta.get("dump_timestamp_us"), 0.0))
    return Call(
        integer(perf.get(f"{what}_sn")),
        _kind(text(perf.get(what))),
        CallState.COMPLETED,
        size_bytes=integer(perf.get(f"{what}_msg_size_bytes")),
        created_s=began_us / 1e6,
        duration_s=took_us / 1e6 if took_us >= 0 else -1.0,
        finished_s=(ended_us or dumped_us) / 1e6,
        peer=integer(perf.get("p2p_peer")),
    )


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


METRICS = "NCCL Inspector metrics"
_CANNOT_METRICS = "NCCL Inspector metrics: averages over an interval, which tell of no rank and of no single operation"
_SAMPLE = re.compile(r"^nccl_(?:p2p_)?(\w{1,64}?)\{(.{1,4096})\} ([-+.\deE]{1,32})(?: \d{1,20})?\s*$")
# Any metric: a node exporter has those of others in the same file, and the Inspector counters.
_OTHER = re.compile(r"^[A-Za-z_:][\w:]{0,255}(?:\{.{0,4096}\})? [-+.\w]{1,32}(?: \d{1,20})?\s*$")
_LABEL = re.compile(r'(\w{1,64})="((?:[^"\\]|\\.){0,512})"')
_UNITS = {
    "bus_bandwidth_gbs": "GB/s bus bandwidth",
    "exec_time_microseconds": "us",
    "collective_exec_time_microseconds": "us",
}
_MOST_SHOWN = 64


def recognises_metrics(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` has metrics of the Inspector."""
    return any(
        name in head
        for name in (b"nccl_bus_bandwidth_gbs{", b"nccl_p2p_bus_bandwidth_gbs{", b"_exec_time_microseconds{")
    )


def read_metrics(data: bytes, file: str) -> Reading:
    """The averages in `data`, in words. Raises UnreadableError if there are none."""
    if data.count(b"\n") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    found: dict[str, list[str]] = {}
    version, bad = "", list[int]()
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        sample = _SAMPLE.match(line)
        if sample is None or sample[1] not in _UNITS:
            bad += [] if _OTHER.match(line) else [number]
            continue
        labels = {name: short_name(value) for name, value in _LABEL.findall(sample[2])}
        version = labels.get("version", version)
        found.setdefault(_of(labels), []).append(f"{sample[3]} {_UNITS[sample[1]]}")
    if not found:
        raise UnreadableError("none of its lines is a metric that is known", "line 1")
    shown = [f"{of}: {', '.join(values)}, on average" for of, values in found.items()]
    problems = (Problem(file, f"{len(bad)} lines cannot be used", f"line {bad[0]}"),) if bad else ()
    source = SourceFile(file, METRICS, version, ())
    return Reading((), (source,), problems, (_CANNOT_METRICS,), shown=tuple(shown[:_MOST_SHOWN]))


def _of(labels: Mapping[str, str]) -> str:
    """What a metric is of: GPU, communicator, kind and size."""
    job, comm = labels.get("slurm_job_id", ""), labels.get("comm_name", "")
    of_job = "" if job in _NAMELESS else f", job {job}"
    name = "a communicator" if comm in _NAMELESS else f"communicator {comm}"
    called = _kind(labels.get("collective") or labels.get("p2p_operation", ""))
    size = f"{labels.get('nranks', '?')} ranks on {labels.get('n_nodes', '?')} nodes"
    where = f"{labels.get('node', '?')} {labels.get('gpu', '?')}{of_job}, {name} of {size}"
    return f"{where}: {called} of {labels.get('message_size', '?')}"
