"""Joins what several sources tell into one job: ranks, their hosts, and who has called what in which communicator."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from c4bench.model.evidence import Call, CallState, HostClock, MemberEvidence, Problem, Reading

_OF_LARGEST = "ranks are those of the largest communicator, of which files are missing; the job may be larger"
_GUESSED = "no communicator has all ranks, so ranks are numbered in the order of hosts and process ids"
_NOT_ALL = (
    "no communicator has all ranks, and not all processes are known, so that they cannot be numbered in the order of "
    "hosts and process ids: ranks of the job are not known"
)
OPEN = (CallState.SCHEDULED, CallState.STARTED)
_WORLD = "0"  # PyTorch's name
# Between two reports of RAS, in which a rank that is only late would have called something.
UNMOVED_S = 10.0
# A communicator that is said to be larger does not say how many ranks are missing.
_MOST_LACKING = 100_000
_Process = tuple[str, int]  # host and process id
_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """The items by their keys, both in the order in which they come."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class Member(msgspec.Struct, frozen=True):
    """A rank in a communicator: its collectives by number, the newest one it called, and how many of each kind.

    `transfers` are its sends and receives, in the order of calls. `completed` is the newest collective that has ended.
    """

    rank: int
    calls: dict[int, Call]
    last: int
    counts: dict[str, int]
    format: str
    transfers: tuple[Call, ...] = ()
    completed: int = -1

    def newest(self) -> tuple[Call, ...]:
        """The newest collective, and the newest send or receive, as far as any is known."""
        return (*islice(reversed(self.calls.values()), 1), *self.transfers[-1:])


class CommEvidence(msgspec.Struct, frozen=True):
    """A communicator; `silent` are ranks of it of which nothing is known.

    `exact` says whether all of `silent` belong to it: else these are the job's ranks that may. `broken` says that a
    source reports some of them as gone. `listed` are the job's ranks in the order of members, if known.
    """

    name: str
    members: dict[int, Member]
    silent: tuple[int, ...]
    exact: bool
    broken: bool
    listed: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int] | str:
        """What a program's communicators of one kind share: their size, and how far their ranks are apart.

        Its name where that is not known.
        """
        return (len(self.listed), self.listed[1] - self.listed[0]) if len(self.listed) > 1 else self.name

    @property
    def passes_on(self) -> bool:
        """Whether its members send to each other, as the stages of a pipeline do."""
        return any(member.transfers for member in self.members.values())

    def floor(self) -> int:
        """The newest operation that every member of which anything is known has called."""
        return min((member.last for member in self.members.values()), default=-1)


class JobEvidence(msgspec.Struct, frozen=True):
    """All that is known of a job of `ranks` ranks.

    `no_file` are those that no source tells anything of, `gone` what sources say of those that do not answer them.
    `unknown` says why ranks may be others than those of the launcher, and which clocks cannot be compared. `clocks` are
    those of ranks that can be (`clocks.py`). `size_stated`: a source or the caller states `ranks`, else there may be
    more. `apart` are communicators whose members have no ranks in the job that are known, `unmoved` ranks that have
    called nothing for some time.
    """

    reading: Reading
    name: str
    ranks: int
    comms: dict[str, CommEvidence]
    hosts: dict[int, str]
    no_file: tuple[int, ...]
    gone: tuple[MemberEvidence, ...]
    size_stated: bool
    apart: dict[str, list[MemberEvidence]]
    unmoved: set[int]
    unknown: tuple[str, ...]
    clocks: dict[int, HostClock] = {}

    def members(self) -> list[Member]:
        """The members of all communicators."""
        return [member for comm in self.comms.values() for member in comm.members.values()]

    def latest_s(self) -> float:
        """When the newest call was made that is known; 0 if no times are."""
        return max((call.shown_s() for member in self.members() for call in member.newest()), default=0.0)

    def clock_error_s(self, ranks: Iterable[int]) -> float:
        """By how much the clocks of some ranks may still differ; infinite if they cannot be compared."""
        ranks = tuple(ranks)
        hosts = {self.hosts.get(rank) for rank in ranks}
        if len(hosts) == 1 and None not in hosts:
            return 0.0
        errors_s = (self.clocks[rank].error_s if rank in self.clocks else math.inf for rank in ranks)
        return max(errors_s, default=math.inf)


def join(reading: Reading, name: str = "job", ranks: int = 0, unmoved_s: float = 0.0) -> JobEvidence:
    """The job that `reading` tells of. `ranks` is its size where the caller knows it.

    `unmoved_s` is for how long the caller has seen no rank call anything.
    """
    stated = max(ranks, reading.ranks)
    members, unsure, least = _numbered(reading.members, stated)
    members, apart = _split(members)
    kept, problems = _once(members)
    seen = {one.rank for one in kept}.union(*(source.ranks for source in reading.sources))
    size = max(stated, least, 1 + max(seen, default=-1))
    spoke_on = {rank: host for log in reading.logs for rank, host in log.spoke_on.items()}
    reported = {one.rank for one in kept if not one.status}.union(spoke_on)
    no_file = tuple(rank for rank in range(size) if rank not in reported)
    return JobEvidence(
        reading=replace(reading, problems=(*reading.problems, *problems)),
        name=name,
        ranks=size,
        comms={comm: _comm(comm, ones, no_file, size) for comm, ones in grouped(kept, lambda one: one.comm).items()},
        hosts={rank: host for rank, host in spoke_on.items() if host}
        | {one.rank: one.host for one in kept if one.host and one.rank >= 0},
        no_file=no_file,
        gone=tuple(one for one in kept if one.status),
        size_stated=stated > 0,
        apart=apart,
        unmoved=reported if unmoved_s >= UNMOVED_S else _unmoved(members),
        unknown=(unsure,) if unsure else (),
    )


def _numbered(members: tuple[MemberEvidence, ...], size: int) -> tuple[list[MemberEvidence], str, int]:
    """Members with their ranks in the job, which has `size` ranks or more, why these may be wrong, and its least size.

    A communicator of all processes numbers them as the launcher does. Without one, all processes together are numbered
    in order, if all are known. Members that cannot be numbered keep the rank -1.
    """
    without = [one for one in members if one.rank < 0]
    if not without:
        return list(members), "", 0
    processes = {(one.host, one.pid) for one in without if one.comm and one.host and one.pid >= 0}
    ranks = {(one.host, one.pid): one.rank for one in members if one.rank >= 0 and one.host and one.pid >= 0}
    largest = max((one for one in without if not one.local), key=lambda one: one.size, default=None)
    world = largest.comm if largest and largest.size >= max(len(processes), size, 1) else ""
    unsure, least = "", 0
    if world and largest:
        least = largest.size if largest.size <= _MOST_LACKING else 0
        unsure = "" if size or len(processes) >= least else _OF_LARGEST
        ranks |= {(one.host, one.pid): one.member for one in without if one.comm == world and one.host}
    elif not ranks and len(processes) >= max(size, 1) and not any(one.local for one in without):
        ranks, unsure = {process: rank for rank, process in enumerate(sorted(processes, key=_launch_order))}, _GUESSED
    found: list[MemberEvidence] = []
    for one in members:
        rank = one.member if world and one.comm == world else ranks.get((one.host, one.pid), -1)
        found.append(one if one.rank >= 0 else replace(one, rank=rank))
    return found, unsure if unsure or any(one.rank >= 0 for one in found) else _NOT_ALL, least


def _launch_order(process: _Process) -> tuple[list[tuple[int, int, str]], int]:
    """By host, numbers in names by their value, then by process id."""
    parts = re.findall(r"\d+|\D+", process[0])
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts], process[1]


def _split(members: list[MemberEvidence]) -> tuple[list[MemberEvidence], dict[str, list[MemberEvidence]]]:
    """The members with ranks in the job, and the communicators of which not all members have one.

    A member without a rank that is in no communicator of the kind is left out, unless it is reported as gone.
    """
    apart: dict[str, list[MemberEvidence]] = {one.comm: [] for one in members if one.local and one.rank < 0}
    kept: list[MemberEvidence] = []
    for one in members:
        if one.comm in apart:
            apart[one.comm].append(one)
        elif one.rank >= 0 or one.status:
            kept.append(one)
    return kept, apart


def _unmoved(members: list[MemberEvidence]) -> set[int]:
    """Ranks that have called nothing between two reports: those of which only counts are known, at two times."""
    first_s: dict[tuple[str, int, int], float] = {}
    last: dict[tuple[str, int], MemberEvidence] = {}
    for one in sorted((one for one in members if one.counts and one.taken_s), key=lambda one: one.taken_s):
        first_s.setdefault((one.comm, one.rank, one.last_seq), one.taken_s)
        last[one.comm, one.rank] = one
    return {rank for (comm, rank), one in last.items() if one.taken_s - first_s[comm, rank, one.last_seq] >= UNMOVED_S}


def _once(members: list[MemberEvidence]) -> tuple[list[MemberEvidence], list[Problem]]:
    """Each member of each communicator once, as the newest source has it; differing sources are problems."""
    kept: dict[tuple[object, ...], MemberEvidence] = {}
    problems: dict[tuple[str, int], Problem] = {}
    for one in members:
        key = one.format, one.comm, one.rank, *((one.host, one.pid) if one.rank < 0 else ())
        before = kept.setdefault(key, one)
        if before is one or _content(before) == _content(one):
            continue
        old, new = sorted((before, one), key=_newness)
        kept[key] = new
        if not one.taken_s:
            reason = f"rank {one.rank} is described twice, and differently by {new.source}, which is newer and used"
            problems[one.source, one.rank] = Problem(old.source, reason)
    return list(kept.values()), list(problems.values())


def _content(one: MemberEvidence) -> tuple[object, ...]:
    return one.calls, one.transfers, one.counts, one.last_seq


def _newness(one: MemberEvidence) -> tuple[float, float, int]:
    created_s = max((call.shown_s() for call in (*one.calls, *one.transfers)), default=0.0)
    return one.taken_s, created_s, one.last_seq


def _comm(name: str, ones: list[MemberEvidence], no_file: tuple[int, ...], job_size: int) -> CommEvidence:
    members = {
        one.rank: Member(
            one.rank,
            {call.seq: call for call in one.calls},
            one.last_seq,
            dict(one.counts),
            one.format,
            one.transfers,
            one.completed_seq,
        )
        for one in sorted(_shown(ones), key=lambda one: one.rank)
    }
    listed = Counter(one.members for one in ones if one.members).most_common(1)
    size = max(one.size for one in ones)
    gone = {one.rank for one in ones if one.status and one.rank >= 0}
    if listed or size == job_size:
        ranks = listed[0][0] if listed else tuple(range(job_size))
        silent = tuple(rank for rank in ranks if rank not in members)
        return CommEvidence(name, members, silent, exact=True, broken=bool(gone), listed=ranks)
    lacking = max(size - len(members), 0)
    silent = tuple(sorted(gone if len(gone) == lacking else gone.union(no_file))) if lacking else ()
    return CommEvidence(name, members, silent, exact=len(silent) == lacking, broken=bool(gone), listed=())


def _shown(ones: list[MemberEvidence]) -> list[MemberEvidence]:
    """Members that answer and whose progress in a communicator is known.

    Where a dump has no call of a group left, its status has a number, which may be that of a send or receive. It counts
    collectives only in the group of all ranks, and in one in which others have called collectives alone.
    """
    called = any(one.calls or one.comm == _WORLD for one in ones)
    counted = called and not any(one.transfers for one in ones)
    return [one for one in ones if not one.status
            and (counted or one.last_seq < 0 or one.calls or one.transfers or one.counts)]  # fmt: skip
