"""The text report of NCCL's RAS: of its sections those that tell of single ranks or processes.

Source: NCCL's user guide, "RAS", `src/ras/client_support.cc` (2.24 to 2.31), and reports of NCCL 2.28.9 and 2.30.7.
These list processes that are dead or do not answer, and then, by communicator, the ranks of which nothing is known.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from c4bench.evidence.fields import integer, kind
from c4bench.evidence.limits import MOST_RANKS, short_name
from c4bench.model.evidence import MemberEvidence

_HEADS = (b"Job summary", b"NCCL version", b"Communicators...")
_GROUP = re.compile(r"^\s*(\d{1,9})\s+\d{1,9}\s+[\d-]{1,20}\s+[\d-]{1,20}\s+(\d{1,9})\s+[\d-]{1,20}\s+[A-Z]")
_COMM = re.compile(r"^\s*#(\d{1,9})-\d+ \((\w{1,32})\) (\w+)")
_STATUS = re.compile(r"^\s*(DEAD|INCOMPLETE)\s*$")
_WHAT = re.compile(r"different (\w+)(?: operation)? (?:operation )?counts")
_MANY = re.compile(r"^\s*(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"^\s*Rank (\d{1,9})(?: has (?:launched up to operation (\d{1,18})|not launched any operations))?")
_WHERE = re.compile(r"(?:managed by process|Process) (\d{1,18}) on node (\S{1,256})")
_VERSION = re.compile(r"NCCL version (\S{1,32})")
_SPELT = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "collective": ""}
_GONE = {"DEAD": "dead", "INCOMPLETE": "unresponsive"}
_Process = tuple[str, int]  # host and process id


class _Section(NamedTuple):
    """A warning: the communicator and how many ranks it has, if it is of one; its word; and its lines."""

    comm: str
    size: int
    word: str
    lines: list[str]


def is_report(head: bytes) -> bool:
    """Whether a text that begins with `head` is a report of RAS."""
    return any(word in head for word in _HEADS) and b"=====" in head


def text_report(data: bytes, file: str, form: str) -> tuple[str, tuple[MemberEvidence, ...], int]:
    """The version of NCCL, what the report tells of ranks, and how many the largest communicator has."""
    report = data.decode("utf-8", "replace")
    version = _VERSION.search(report)
    lines = report.splitlines()
    sizes = {group[1]: integer(group[2], 0) for line in lines if (group := _GROUP.match(line))}
    sections = list(_sections(lines, sizes))
    members = list(_missing(sections, file, form))
    for section in sections:
        if section.word == "MISMATCH":
            missing = {one.member for one in members if one.comm == section.comm}
            members += [one for one in _mismatch(section, file, form) if one.member not in missing]
    largest = min(MOST_RANKS, max(sizes.values(), default=0))
    return short_name(version[1]) if version else "unknown", tuple(members), largest


def _sections(lines: list[str], sizes: dict[str, int]) -> Iterator[_Section]:
    """The warnings. `sizes` are those of communicators, by the group of communicators in which these are alike."""
    section = _Section("", 0, "", [])
    for line in lines:
        if head := _COMM.match(line):
            yield section
            section = _Section(head[2], sizes.get(head[1], 0), head[3], [])
        elif status := _STATUS.match(line):
            yield section
            section = _Section("", 0, status[1], [])
        else:
            section.lines.append(line)
    yield section


def _mismatch(section: _Section, file: str, form: str) -> Iterator[MemberEvidence]:
    """Members by what they have launched; those that are not listed are of the first and largest group."""
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    where: dict[int, tuple[int, str]] = {}
    usual: dict[str, int] = {}
    comm, size, what, up_to, total = section.comm, section.size, "", 0, 0
    for line in section.lines:
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
                where[rank] = integer(place[1]), short_name(place[2])
    size = max(size, total)
    if not 0 < size <= MOST_RANKS:
        return
    for rank in range(size):
        mine = tuple(sorted((usual | counts.get(rank, {})).items()))
        pid, host = where.get(rank, (-1, ""))
        last = sum(count for _, count in mine)
        yield MemberEvidence(file, form, comm, member=rank, size=size, host=host, pid=pid, counts=mine, last_seq=last)


def _missing(sections: list[_Section], file: str, form: str) -> Iterator[MemberEvidence]:
    """What does not answer: ranks as far as they are listed by communicator, and the other processes."""
    of_processes: dict[_Process, str] = {}
    of_ranks: list[tuple[_Section, int, _Process]] = []
    for section in sections:
        for line in section.lines if section.word in _GONE else ():
            place, rank = _WHERE.search(line), _ONE.match(line)
            if place and section.comm and rank:
                of_ranks.append((section, integer(rank[1]), (short_name(place[2]), integer(place[1]))))
            elif place:
                of_processes[short_name(place[2]), integer(place[1])] = _GONE[section.word]
    for section, member, (host, pid) in of_ranks:
        status = of_processes.get((host, pid), _GONE[section.word])
        yield MemberEvidence(
            file, form, section.comm, member=member, size=section.size, host=host, pid=pid, status=status
        )
    for host, pid in of_processes.keys() - {process for _, _, process in of_ranks}:
        yield MemberEvidence(file, form, "", host=host, pid=pid, status=of_processes[host, pid])
