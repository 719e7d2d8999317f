"""NCCL's RAS (2.24 to 2.31): the report of `ncclras`, as JSON or as text, of one moment.

Source: NCCL's documentation of RAS, `src/ras/client_support.cc`, and reports of NCCL 2.28.9 and 2.30.7. It counts the
collectives that each rank has called, by kind, and names ranks that do not answer. It tells of no operation how far it
has come.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from c4bench.evidence.fields import integer, kind, mapping, objects, text
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data, short_name
from c4bench.evidence.ras_text import is_report, text_report
from c4bench.model.evidence import MemberEvidence, Problem, Reading, SourceFile

FORMAT = "NCCL RAS"
# 2.28.9 leaves out the comma before the status of a rank that is missing; 2.30.7 writes it.
_WITHOUT_COMMA = re.compile(rb'("nvml_dev": -?\d{1,9})(\s{1,99}"status")')
_CANNOT = (
    "NCCL RAS: it counts calls and does not order them across communicators; whether a rank that has called less is "
    "late or never comes shows only between two reports"
)

_CANNOT_TEXT = "NCCL RAS text: only communicators that it warns of are told of"


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a report of RAS."""
    return b'"communicators' in head if head.lstrip().startswith(b"{") else is_report(head)


def read(data: bytes, file: str) -> Reading:
    """The report in `data`. Raises UnreadableError."""
    if not data.lstrip().startswith(b"{"):
        said = text_report(data, file, FORMAT)
        sources = (SourceFile(file, FORMAT, said.version, ()),)
        return Reading(said.members, sources, said.problems, (_CANNOT, _CANNOT_TEXT), said.ranks,
                       per_host=said.per_host, timeouts=said.timeouts)  # fmt: skip
    report = mapping(json_data(_WITHOUT_COMMA.sub(rb"\1,\2", data)))
    if "communicators" not in report:
        raise UnreadableError("it is no report of RAS: it has no communicators")
    taken_s = _time_s(text(report.get("timestamp")))
    members: list[MemberEvidence] = []
    problems: list[Problem] = []
    for number, comm in enumerate(objects(report["communicators"])):
        found, lost = _communicator(comm, number, file, taken_s)
        members += found
        if lost:
            problems.append(Problem(file, f"{lost} ranks without a number are not used", f"communicator {number}"))
    version = short_name(text(report.get("nccl_version"))) or "unknown"
    return Reading(tuple(members), (SourceFile(file, FORMAT, version, ()),), tuple(problems), (_CANNOT,))


def _time_s(written: str) -> float:
    """A time such as `2026-11-26 01:50:36`; as its zone is not written, it only says which report is newer."""
    try:
        return datetime.strptime(written, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _communicator(comm: Mapping[str, Any], number: int, file: str, taken_s: float) -> tuple[list[MemberEvidence], int]:
    """The members of a communicator, and how many entries have no rank."""
    name = short_name(text(comm.get("hash"))) or str(number)
    size = max(0, integer(comm.get("size"), 0))
    found, lost = [], 0
    entries = [(entry, False) for entry in objects(comm.get("ranks"))]
    entries += [(entry, True) for entry in objects(comm.get("missing_ranks"))]
    for entry, missing in entries:
        rank = integer(entry.get("rank"))
        if not 0 <= rank < MOST_RANKS:
            lost += 1
            continue
        counts = _counts(mapping(entry.get("collective_counts")))
        status = mapping(entry.get("status"))
        one = MemberEvidence(
            file, FORMAT, name, member=rank, size=size, host=short_name(text(entry.get("host"))),
            pid=integer(entry.get("pid")), counts=counts, last_seq=sum(count for _, count in counts),
            status=("dead" if status.get("considered_dead") is True else "unresponsive") if missing else "",
            taken_s=taken_s,
        )  # fmt: skip
        found.append(one)
    return found, lost


def _counts(found: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    spelt = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
    counts = ((spelt.get(name, kind(name)), integer(count)) for name, count in found.items())
    return tuple(sorted((name, count) for name, count in counts if name and count >= 0))
