"""The text report of NCCL's RAS: of its sections those that tell of single ranks or processes.

Source: NCCL's user guide, "RAS", and `src/ras/client_support.cc` (2.24 to 2.31).
"""

import re
from collections import defaultdict
from collections.abc import Iterator

from c4bench.evidence.fields import integer, kind
from c4bench.evidence.limits import MOST_RANKS, place_of
from c4bench.model.evidence import MemberEvidence

_HEADS = (b"Job summary", b"NCCL version", b"Communicators...")
_COMM = re.compile(r"^\s*#\d+-\d+ \((\w{1,32})\) (\w+)")
_STATUS = re.compile(r"^\s*(DEAD|INCOMPLETE)\s*$")
_WHAT = re.compile(r"different (\w+)(?: operation)? (?:operation )?counts")
_MANY = re.compile(r"^\s*(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"^\s*Rank (\d{1,9})(?: has (?:launched up to operation (\d{1,18})|not launched any operations))?")
_WHERE = re.compile(r"(?:managed by process|Process) (\d{1,18}) on node (\S{1,256})")
_VERSION = re.compile(r"NCCL version (\S{1,32})")
_SPELT = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "collective": ""}


def is_report(head: bytes) -> bool:
    """Whether a text that begins with `head` is a report of RAS."""
    return any(word in head for word in _HEADS) and b"=====" in head


def text_report(data: bytes, file: str, form: str) -> tuple[str, tuple[MemberEvidence, ...]]:
    """The version of NCCL, and what the report tells of ranks."""
    report = data.decode("utf-8", "replace")
    version = _VERSION.search(report)
    members: list[MemberEvidence] = []
    for comm, word, lines in _sections(report.splitlines()):
        if word == "MISMATCH":
            members += _mismatch(comm, lines, file, form)
        elif word in {"DEAD", "INCOMPLETE"}:
            members += _missing(comm, word, lines, file, form)
    return place_of(version[1]) if version else "unknown", tuple(members)


def _sections(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """The communicator, or nothing; the word of the warning; and its lines."""
    comm, word, mine = "", "", list[str]()
    for line in lines:
        head, status = _COMM.match(line), _STATUS.match(line)
        if head or status:
            yield comm, word, mine
            comm, word = (head[1], head[2]) if head else ("", status[1] if status else "")
            mine = []
        else:
            mine.append(line)
    yield comm, word, mine


def _mismatch(comm: str, lines: list[str], file: str, form: str) -> Iterator[MemberEvidence]:
    """Members by what they have launched; those that are not listed are of the first and largest group."""
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    where: dict[int, tuple[int, str]] = {}
    usual: dict[str, int] = {}
    size, what, up_to, total = 0, "", 0, 0
    for line in lines:
        if named := _WHAT.search(line):
            size, total, what = max(size, total), 0, _SPELT.get(named[1], kind(named[1]))
        elif many := _MANY.match(line):
            up_to = integer(many[2], 0) if many[2] else 0
            total += integer(many[1], 0)
            usual.setdefault(what, up_to)
        elif one := _ONE.match(line):
            rank = integer(one[1])
            counts[rank][what] = integer(one[2], 0) if " has " in line else up_to
            total += " has " in line
            if place := _WHERE.search(line):
                where[rank] = integer(place[1]), place_of(place[2])
    size = max(size, total)
    if not 0 < size <= MOST_RANKS:
        return
    for rank in range(size):
        mine = tuple(sorted((usual | counts.get(rank, {})).items()))
        pid, host = where.get(rank, (-1, ""))
        last = sum(count for _, count in mine)
        yield MemberEvidence(file, form, comm, member=rank, size=size, host=host, pid=pid, counts=mine, last_seq=last)


def _missing(comm: str, word: str, lines: list[str], file: str, form: str) -> Iterator[MemberEvidence]:
    """Processes that do not answer; which ranks these are, the text does not say."""
    for line in lines:
        if place := _WHERE.search(line):
            status = "dead" if word == "DEAD" else "unresponsive"
            rank = _ONE.match(line)
            yield MemberEvidence(
                file, form, comm, member=integer(rank[1]) if rank else -1, host=place_of(place[2]),
                pid=integer(place[1]), status=status,
            )  # fmt: skip
