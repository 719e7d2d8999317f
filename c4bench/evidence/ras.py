"""NCCL's RAS (2.24 to 2.31): the report of `ncclras` of one moment, as JSON or as text, and events of monitor mode.

Source: NCCL's documentation of RAS, `src/ras/client_support.cc`, and reports of NCCL 2.28.9 and 2.30.7. It counts the
collectives that each rank has called, by kind, and names ranks that do not answer. It tells of no operation how far it
has come.

The text report of NCCL's RAS: of its sections those that tell of single ranks or processes. Source: NCCL's user guide,
"RAS", `src/ras/client_support.cc` (2.24 to 2.31), and reports of NCCL 2.28.9 and 2.30.7. These list processes that are
dead or do not answer, and then, by communicator, the ranks of which nothing is known: each with its process, or, up to
2.25, only their numbers. People paste the part that matters, so any section may be missing, and other lines may stand
around them.

Monitor mode (`ncclras -m`, 2.29 and later) writes which processes stopped answering, as text or JSON. Source: NCCL's
user guide, "RAS", and `rasClientsNotifyEvent` in `src/ras/client_support.cc`. An event is a line such as `[2025-12-19
13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1`, or an object of several lines. Times are of
the day where it was written, without a zone, so only their order is used.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from c4bench.budget import RAS, Account, OverBudgetError
from c4bench.evidence.fields import integer, kind, mapping, objects, text
from c4bench.evidence.limits import MOST_LINES, MOST_RANKS, UnreadableError, json_data, json_objects, short_name
from c4bench.evidence.lines import bare
from c4bench.model.evidence import MemberEvidence, Problem, Reading, SourceFile

FORMAT = "NCCL RAS"
# 2.28.9 leaves out the comma before the status of a rank that is missing; 2.30.7 writes it.
_WITHOUT_COMMA = re.compile(rb'("nvml_dev": -?\d{1,9})(\s{1,99}"status")')
_CANNOT = (
    "NCCL RAS: it counts calls and does not order them across communicators; whether a rank that has called less is "
    "late or never comes shows only between two reports"
)

_CANNOT_TEXT = (
    "NCCL RAS text: it shows only communicators that it warns of, and which ranks only where they are few, or with -v"
)
_HEADS = (b"Job summary", b"NCCL version", b"Communicators...")
# An expression that begins with plain text is much faster to find in a long file.
_TABLE = re.compile(rb"Group +Comms +Nodes +Ranks")
_WARNING = re.compile(rb"#\d{1,9}-\d{1,9} \(\w{1,32}\) [A-Z]+\s*$", re.MULTILINE)
_TITLE = re.compile(r"(?:Job summary|Warnings)\s*$|Group +Comms +Nodes|#\d{1,9}-\d{1,9} \(\w{1,32}\) [A-Z]+\s*$")
_JOB = re.compile(r"^\s*(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s*$")
_TOTALS = re.compile(r"^\s*(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s*$")
_GROUP = re.compile(
    r"^\s*(\d{1,9})\s+(\d{1,9})\s+[\d-]{1,20}\s+[\d-]{1,20}\s+(\d{1,9})(?:-\d{1,9})?\s+(\d{1,9})(?:-\d{1,9})?\s+([A-Z]{1,32})"
    r"(?:\s+([A-Z,]{1,99}))?"
)
_COMM = re.compile(r"^\s*#(\d{1,9})-\d+ \((\w{1,32})\) (\w+)")
_STATUS = re.compile(r"^\s*(DEAD|INCOMPLETE)\s*$")
_WHAT = re.compile(r"different (\w{1,64})(?: operation)? (?:operation )?counts")
_MANY = re.compile(r"^\s*(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"^\s*Rank (\d{1,9})(?: has (?:launched up to operation (\d{1,18})|not launched any operations))?")
_STATE = re.compile(
    r"^\s*(?:(\d{1,9} ranks?)|Rank (\d{1,9})) "
    r"((?:ha(?:ve|s) )?(?:status|reported) (?:(?! -- ).){1,64}|have launched up to operation \d{1,18})"
)
_LACKS = re.compile(r"^\s*(Missing communicator data from \d{1,9} [a-z ]{1,32})$")
_MISSING = re.compile(r"^\s*The missing ranks?: ([\d,\s-]{1,1000000})$")
_WHERE = re.compile(r"(?:managed by process|Process) (\d{1,18}) on node (\S{1,256})")
_GPU = re.compile(r"GPUs? (\d{1,6})(?: \(NVML (\d{1,6})\))?")
_VERSION = re.compile(r"NCCL version (\S{1,32})")
_SPELT = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "collective": ""}
_MOST_SHOWN, _MOST_STATES = 32, 8
_GONE = {"DEAD": "dead", "INCOMPLETE": "unresponsive"}
_Process = tuple[str, int]  # host and process id


class _Section(NamedTuple):
    """A warning: the communicator and how many ranks it has, if it is of one; its word; and its lines."""

    comm: str
    size: int
    word: str
    lines: list[str]


class _Group(NamedTuple):
    """Communicators that are alike: how many, of how many ranks each, and how many ranks in all."""

    comms: int
    size: int
    in_all: int


class _Gone(NamedTuple):
    """A process that is dead or does not answer."""

    status: str
    gpu: int


def _read_text(data: bytes, file: str) -> Reading:
    """What the report as text tells, and other lines around it. Raises UnreadableError if that is more than it may."""
    if data.count(b"\n") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    report = data.decode("utf-8", "replace")
    version = _VERSION.search(report)
    lines = _aligned([bare(line) for line in report.split("\n")])
    account = Account(file, RAS)
    rows = list(filter(None, map(_GROUP.match, lines)))
    groups = {row[1]: _Group(int(row[2]), int(row[3]), int(row[4])) for row in rows}
    ranks, per_host = _job(lines, groups.values())
    ranks = ranks if ranks <= RAS.names else 0
    sections = list(_sections(lines, {number: group.size for number, group in groups.items()}))
    problems: list[Problem] = []
    try:
        members = list(_missing(sections, file, account))
    except OverBudgetError as error:
        raise UnreadableError(str(error).removeprefix(f"{file}: ")) from None
    missing = {(one.comm, one.member) for one in members}
    for section in sections:
        if section.word == "MISMATCH":
            try:
                found = list(_mismatch(section, file, account, ranks))
            except OverBudgetError as error:
                reason = f"{str(error).removeprefix(f'{file}: ')}; this communicator is not used"
                problems.append(Problem(file, reason, f"communicator {section.comm}"))
            else:
                members += [one for one in found if (one.comm, one.member) not in missing]
    release = short_name(version[1]) if version else "unknown"
    placed, sources = tuple(_in_job(one, ranks) for one in members), (SourceFile(file, FORMAT, release, ()),)
    cannot = (_CANNOT, _CANNOT_TEXT)
    lacking = sorted({row[6] for row in rows if row[6] and row[6] != "OK"})
    if lacking and not any(section.lines for section in sections if section.comm or section.word):
        reason = f"its table has {', '.join(lacking)}, and what it says of that further on is not here"
        problems.append(Problem(file, reason))
    shown = tuple([*map(_row, rows), *filter(None, map(_said, sections))][:_MOST_SHOWN])
    return Reading(placed, sources, tuple(problems), cannot, ranks, per_host=per_host, shown=shown)


def _aligned(lines: list[str]) -> list[str]:
    """The lines without what a logger put before each, as far as the titles of a report all stand at one column."""
    columns = {found.start() for line in lines if (found := _TITLE.search(line))}
    width = columns.pop() if len(columns) == 1 else 0
    return [line[width:] for line in lines] if width else lines


def _row(row: re.Match[str]) -> str:
    """What the table says of communicators that are alike."""
    comms, size, status, errors = int(row[2]), int(row[3]), row[5], row[6] or "not shown"
    return f"{comms} communicator{'' if comms == 1 else 's'} of {size} ranks: status {status}, errors {errors}"


def _said(section: _Section) -> str:
    """What a warning says of a communicator, or of processes, and of ranks that it need not name."""
    of = section.comm or "all communicators"
    found = [f"{state[1] or f'rank {state[2]}'} {state[3]}{_by(line)}"
             for line in section.lines if (state := _STATE.match(line))]  # fmt: skip
    found += [lacks[1] for line in section.lines if (lacks := _LACKS.match(line)) and section.word in _GONE]
    return f"{of}: {', '.join(found[:_MOST_STATES])}" if found else ""


def _by(line: str) -> str:
    """The process that a line names, in words."""
    place = _WHERE.search(line)
    return f" (process {place[1]} on {short_name(place[2])})" if place else ""


def _job(lines: Iterable[str], groups: Iterable[_Group]) -> tuple[int, int]:
    """How many ranks the job has, and how many processes each host; 0 for what the report does not say.

    Where the summary of the job is missing, a communicator is taken for that of all ranks if it is the only one of its
    size, and no other group has more ranks in all.
    """
    before = ""
    for line in lines:
        if row := _JOB.match(line):
            return int(row[5]), int(row[2])
        if (row := _TOTALS.match(line)) and before.split() == ["(total)"] * 3:
            return int(row[3]), 0
        before = line
    known = list(groups)
    largest = max(known, key=lambda group: group.size, default=_Group(0, 0, 0))
    fits = all(group is largest or group.in_all <= largest.size for group in known)
    return (largest.size if largest.comms == 1 and fits else 0), 0


def _in_job(one: MemberEvidence, ranks: int) -> MemberEvidence:
    """The member with its rank in the job, if its communicator is that of all ranks; else it is `local`."""
    if ranks and one.size == ranks and one.member >= 0:
        return msgspec.structs.replace(one, rank=one.member)
    return msgspec.structs.replace(one, local=one.member >= 0)


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


def _mismatch(section: _Section, file: str, account: Account, ranks: int) -> Iterator[MemberEvidence]:
    """Members by what they have launched; those that are not listed are of the first and largest group.

    There are none where ranks of another group are counted and not listed, which RAS does for few only.

    Raises OverBudgetError before it makes more members than a report, or its job of so many `ranks`, may have.
    """
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    where: dict[int, tuple[int, str, int]] = {}
    usual: dict[str, int] = {}
    unlisted: Counter[tuple[str, int]] = Counter()
    comm, size, what, up_to, total, counted = section.comm, section.size, "", 0, 0, True
    for line in section.lines:
        if "have different status" in line:
            counted = False
        elif named := _WHAT.search(line):
            counted = True
            size, total, what = max(size, total), 0, _SPELT.get(named[1], short_name(kind(named[1])))
        elif not counted:
            continue
        elif many := _MANY.match(line):
            up_to = integer(many[2], 0) if many[2] else 0
            total += integer(many[1], 0)
            if what in usual:
                unlisted[what, up_to] += integer(many[1], 0)
            usual.setdefault(what, up_to)
        elif one := _ONE.match(line):
            account.spend(records=1)
            rank = integer(one[1])
            counts[rank][what] = integer(one[2], 0) if " has " in line else up_to
            unlisted[what, up_to] -= " has " not in line
            total += " has " in line
            if place := _WHERE.search(line):
                where[rank] = integer(place[1]), short_name(place[2]), _gpu(line)
    if not (usual or counts) or max(unlisted.values(), default=0) > 0:
        return
    # Counts of ranks that the table of communicators contradicts are not followed.
    size = section.size or max(size, total)
    if 0 < ranks < size:
        raise OverBudgetError(f"{file}: {size:,} ranks in a job of {ranks:,}")
    if size > 0:
        account.spend(records=size, names=size)
    like_most = tuple(sorted(usual.items()))
    for rank in range(size):
        mine = tuple(sorted((usual | counts[rank]).items())) if rank in counts else like_most
        pid, host, gpu = where.get(rank, (-1, "", -1))
        last = sum(count for _, count in mine)
        yield MemberEvidence(
            file, FORMAT, comm, member=rank, size=size, host=host, pid=pid, gpu=gpu, counts=mine, last_seq=last
        )


def _missing(sections: list[_Section], file: str, account: Account) -> Iterator[MemberEvidence]:
    """What does not answer: ranks as far as they are listed by communicator, and the other processes."""
    processes: dict[_Process, _Gone] = {}
    gpus: dict[tuple[str, int], int] = {}  # a process may have several
    of_ranks: list[tuple[_Section, int, _Process]] = []
    numbers: list[tuple[_Section, list[int]]] = []
    for section in sections:
        within = min(section.size or RAS.names, RAS.names)
        for line in section.lines if section.word in _GONE else ():
            place, rank = _WHERE.search(line), _ONE.match(line)
            if listed := _MISSING.match(line):
                numbers.append((section, [rank for rank in _listed(listed[1], account) if rank < within]))
            elif place is not None:
                account.spend(records=1, names=1)
                process = short_name(place[2]), integer(place[1])
                if section.comm and rank and integer(rank[1]) < within:
                    of_ranks.append((section, integer(rank[1]), process))
                    gpus[section.comm, integer(rank[1])] = _gpu(line)
                    processes.setdefault(process, _Gone(_GONE[section.word], _gpu(line)))
                else:
                    processes[process] = _Gone(_GONE[section.word], _gpu(line))
            elif section.comm and rank and integer(rank[1]) < within:
                numbers.append((section, [integer(rank[1])]))
    for section, found in numbers:
        of_ranks += _placed(section, found, list(processes))
    for section, member, (host, pid) in of_ranks:
        gone = processes.get((host, pid)) or _Gone(_status_of(processes.values(), section), -1)
        yield MemberEvidence(file, FORMAT, section.comm, member=member, size=section.size, host=host, pid=pid,
                             gpu=gpus.get((section.comm, member), gone.gpu), status=gone.status)  # fmt: skip
    for host, pid in sorted(processes.keys() - {process for _, _, process in of_ranks}):
        gone = processes[host, pid]
        yield MemberEvidence(file, FORMAT, "", host=host, pid=pid, gpu=gone.gpu, status=gone.status)


def _placed(section: _Section, ranks: list[int], processes: list[_Process]) -> list[tuple[_Section, int, _Process]]:
    """Missing ranks of which only the numbers are known: with the process if there is one, or the host of them all."""
    hosts = {host for host, _ in processes}
    if len(ranks) == len(processes) == 1:
        return [(section, ranks[0], processes[0])]
    host = hosts.pop() if len(hosts) == 1 and len(ranks) == len(processes) else ""
    return [(section, rank, (host, -1)) for rank in ranks]


def _status_of(processes: Iterable[_Gone], section: _Section) -> str:
    """The status of ranks whose processes are not told apart: dead if all processes are."""
    words = {gone.status for gone in processes}
    return words.pop() if len(words) == 1 else _GONE[section.word]


def _listed(text: str, account: Account) -> list[int]:
    """The ranks in a list such as `4,5,8-11`. Raises OverBudgetError before it makes more than a report may have."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            low, high = integer(first), integer(last or first)
            account.spend(records=max(0, high - low + 1))
            found += range(low, high + 1)
    return found


def _gpu(line: str) -> int:
    """The GPU of a process, by its number on the host where that is given; -1 if none is."""
    found = _GPU.search(line)
    return int(found[2] or found[1]) if found else -1


def recognises(head: bytes, _name: str) -> bool:
    """Whether a report of RAS stands in `head`."""
    if _json_begin(head) >= 0:
        return True
    titled = any(word in head for word in _HEADS) and b"=====" in head
    return titled or bool(_WARNING.search(head) or _TABLE.search(head))


def read(data: bytes, file: str) -> Reading:
    """The report in `data`. Raises UnreadableError."""
    if not recognises(data, file):
        raise UnreadableError("it is no report of RAS: it has neither communicators nor a report's headings")
    begin = _json_begin(data)
    if begin < 0:
        return _read_text(data, file)
    written = _WITHOUT_COMMA.sub(rb"\1,\2", data[begin:])
    # Reports may stand one after the other; a shell's words after them are left out.
    alone = written.rstrip().endswith(b"}") and b"\n{" not in written
    reports = [json_data(written)] if alone else json_objects(written)[0]
    first, *others = [_read_report(mapping(one), file) for one in reports]
    members, problems = [*first.members], [*first.problems]
    for other in others:
        members += other.members
        problems += other.problems
    return msgspec.structs.replace(first, members=tuple(members), problems=tuple(problems))


def _read_report(report: Mapping[str, Any], file: str) -> Reading:
    """A report in JSON. Raises UnreadableError."""
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


def _json_begin(data: bytes) -> int:
    """Where a report in JSON begins, at the beginning of a line; -1 if there is none."""
    key = data.find(b'"communicators')
    begin = data.rfind(b"\n{", 0, max(0, key)) + 1
    begin += len(data[begin:key]) - len(data[begin:key].lstrip())
    return begin if key >= 0 and data[begin : begin + 1] == b"{" else -1


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
    counts = ((_SPELT.get(name) or kind(name), integer(count)) for name, count in found.items())
    return tuple(sorted((name, count) for name, count in counts if name and count >= 0))


EVENTS = "NCCL RAS events"
_CANNOT_EVENTS = (
    "NCCL RAS events: they name processes and not ranks, and only those that stopped answering RAS's own threads"
)
_EVENT_LINE = re.compile(rb"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] PEER_[A-Z_]{1,40}:", re.MULTILINE)
_EVENT = re.compile(r"^\[[^\]]{19}\] (PEER_[A-Z_]{1,40}): Process (\d{1,18}) on node (\S{1,256})")
_GREETING = (b"RAS Monitor Mode", b"====", b"OK")
_OBJECT_END = re.compile(rb"(?<=\n\})\s*\n")
_MOST_EVENTS = 200_000
# What an event says of a process from then on. All other events change nothing.
_STATUS_AFTER = {
    "PEER_DEAD": "dead",
    "PEER_TIMEOUT_DEAD": "dead",
    "PEER_UNRESPONSIVE": "unresponsive",
    "PEER_KEEPALIVE_TIMEOUT": "unresponsive",
    "PEER_SEND_STUCK": "unresponsive",
    "PEER_NEW": "",
    "PEER_CONNECTED": "",
    "PEER_RECOVERED": "",
}


class _Event(NamedTuple):
    name: str
    host: str
    pid: int


def recognises_events(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` has events of RAS."""
    return (b"] PEER_" in head and bool(_EVENT_LINE.search(head))) or (b'"PEER_' in head and b'"event"' in head)


def read_events(data: bytes, file: str) -> Reading:
    """The processes that had not answered again by the end of `data`. Raises UnreadableError."""
    if data.count(b"\n") + data.count(b"\r") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    parts = _parts(data)
    if len(parts) > _MOST_EVENTS:
        raise UnreadableError(f"it has more than {_MOST_EVENTS} events")
    status: dict[tuple[str, int], str] = {}
    bad: list[int] = []
    for number, part in enumerate(parts, start=1):
        event = _json_event(part) if part.startswith(b"{") else _text_event(part)
        if event is None:
            bad.append(number)
        elif event.name in _STATUS_AFTER and event.pid >= 0:
            status[event.host, event.pid] = _STATUS_AFTER[event.name]
    members = tuple(MemberEvidence(file, EVENTS, "", host=host, pid=pid, status=word)
                    for (host, pid), word in sorted(status.items()) if word)  # fmt: skip
    problems = (Problem(file, f"{len(bad)} events cannot be used", f"event {bad[0]}"),) if bad else ()
    return Reading(members, (SourceFile(file, EVENTS, "", ()),), problems, (_CANNOT_EVENTS,))


def _parts(data: bytes) -> list[bytes]:
    """The events: lines, or objects that end with a brace on a line of its own."""
    data = b"\n".join(line for line in data.splitlines() if not line.startswith(_GREETING))
    parts: Iterator[bytes]
    if b"\n}" in data or data.lstrip().startswith(b"{"):
        parts = (part.strip() for part in _OBJECT_END.split(data))
    else:
        parts = (line.strip() for line in data.splitlines())
    return [part for part in parts if part]


def _text_event(line: bytes) -> _Event | None:
    """An event; one of a peer that RAS knows by its address only has no process."""
    if not _EVENT_LINE.match(line):
        return None
    found = _EVENT.match(line.decode("utf-8", "replace"))
    return _Event(found[1], short_name(found[3]), integer(found[2])) if found else _Event("", "", -1)


def _json_event(part: bytes) -> _Event | None:
    try:
        document = mapping(json_data(part))
    except UnreadableError:
        return None
    peer = mapping(document.get("peer"))
    name = text(document.get("event"))
    return _Event(name, short_name(text(peer.get("host"))), integer(peer.get("pid"))) if name else None
