"""Joins what several sources tell into one job: ranks, their hosts, and who has called what in which communicator."""

import math
import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from c4bench.model.evidence import Call, CallState, HostClock, MemberEvidence, Problem, Reading, TimedOut

_GUESSED = "no communicator has all ranks, so ranks are numbered in the order of hosts and process ids"
_NOT_ALL = (
    "no communicator has all ranks, and not all processes are known, so that they cannot be numbered in the order of "
    "hosts and process ids: ranks of the job are not known"
)
_Process = tuple[str, int]


def numbered(members: Iterable[MemberEvidence], size: int) -> tuple[list[MemberEvidence], str]:
    """Members with their ranks in the job, which has `size` ranks or more, and why these may be wrong.

    A communicator of all processes numbers them as the launcher does. Without one, all processes together are numbered
    in order, if all are known. Members that cannot be numbered keep the rank -1.
    """
    ones = list(members)
    without = [one for one in ones if one.rank < 0]
    if not without:
        return ones, ""
    processes = {(one.host, one.pid) for one in without if one.comm and one.host and one.pid >= 0}
    ranks = {(one.host, one.pid): one.rank for one in ones if one.rank >= 0 and one.host and one.pid >= 0}
    world, unsure = _world_comm(without, max(len(processes), size)), ""
    if world:
        ranks |= {(one.host, one.pid): one.member for one in without if one.comm == world and one.host}
    elif not ranks and len(processes) >= max(size, 1) and not any(one.local for one in without):
        ranks, unsure = {process: rank for rank, process in enumerate(sorted(processes, key=_launch_order))}, _GUESSED
    found = [one if one.rank >= 0 else _numbered(one, ranks, world) for one in ones]
    if not unsure and not any(one.rank >= 0 for one in found):
        unsure = _NOT_ALL
    return found, unsure


def _world_comm(members: list[MemberEvidence], processes: int) -> str:
    """The largest communicator, if it has all processes."""
    largest = max((one for one in members if not one.local), key=lambda one: one.size, default=None)
    return largest.comm if largest and largest.size >= max(processes, 1) else ""


def _numbered(one: MemberEvidence, ranks: dict[_Process, int], world: str) -> MemberEvidence:
    rank = one.member if world and one.comm == world else ranks.get((one.host, one.pid), -1)
    return msgspec.structs.replace(one, rank=rank)


def _launch_order(process: _Process) -> tuple[list[tuple[int, int, str]], int]:
    """By host, numbers in names by their value, then by process id."""
    parts = re.findall(r"\d+|\D+", process[0])
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts], process[1]


OPEN = (CallState.SCHEDULED, CallState.STARTED)
_WORLD = "0"  # PyTorch's name
# Between two reports of RAS, in which a rank that is only late would have called something.
UNMOVED_S = 10.0


class Member(msgspec.Struct, frozen=True):
    """A rank in a communicator: its collectives by number, the newest one it called, and how many of each kind.

    `transfers` are its sends and receives, in the order of calls.
    """

    rank: int
    calls: dict[int, Call]
    last: int
    counts: dict[str, int]
    status: str
    source: str
    format: str
    transfers: tuple[Call, ...] = ()

    def first(self) -> tuple[Call, ...]:
        """The oldest collective, if any is known."""
        return (next(iter(self.calls.values())),) if self.calls else ()

    def newest(self) -> tuple[Call, ...]:
        """The newest call, if any is known."""
        return (next(reversed(self.calls.values())),) if self.calls else ()

    def first_open(self) -> Call | None:
        """The first call that is known not to have ended; those of a communicator end in order."""
        return next((call for call in self.calls.values() if call.state in OPEN), None)


class CommEvidence(msgspec.Struct, frozen=True):
    """A communicator; `ranks` are those known to belong to it, `silent` those of which nothing is known.

    `exact` says whether all of `silent` belong to it: else these are the job's ranks that may. `broken` says that a
    source reports some of them as gone. `listed` are the job's ranks in the order of members, if known.
    """

    name: str
    members: dict[int, Member]
    ranks: tuple[int, ...]
    silent: tuple[int, ...]
    exact: bool
    broken: bool = False
    listed: tuple[int, ...] = ()

    def rank_of(self, member: int) -> int:
        """The job's rank of a member; -1 if it is not known."""
        return self.listed[member] if 0 <= member < len(self.listed) else -1

    def floor(self) -> int:
        """The newest operation that every member of which anything is known has called."""
        return min((member.last for member in self.members.values()), default=-1)


class JobEvidence(msgspec.Struct, frozen=True):
    """All that is known of a job of `ranks` ranks.

    `no_file` are those that no source tells anything of, `gone` what sources say of those that do not answer them.
    `unsure` says why ranks may be others than those of the launcher; empty if they are its. `clocks` are compared in
    `clocks.py`, as well as `clock_errors_s` allows, by rank; `lacking_clocks` says which cannot be. `size_stated`: a
    source or the caller states `ranks`, else there may be more. `per_host` processes are on each host, 0 if not known.
    `apart` are communicators whose members have no ranks in the job that are known, `unmoved` ranks that have called
    nothing for some time.
    """

    name: str
    ranks: int
    comms: dict[str, CommEvidence]
    hosts: dict[int, str]
    no_file: tuple[int, ...]
    gone: tuple[MemberEvidence, ...]
    latest_s: float
    unsure: str
    problems: tuple[Problem, ...]
    size_stated: bool = False
    per_host: int = 0
    timeouts: tuple[TimedOut, ...] = ()
    apart: dict[str, tuple[MemberEvidence, ...]] = {}
    unmoved: frozenset[int] = frozenset()
    clocks: tuple[HostClock, ...] = ()
    clock_errors_s: dict[int, float] = {}
    lacking_clocks: str = ""

    def clock_error_s(self, ranks: Iterable[int]) -> float:
        """By how much the clocks of some ranks may still differ; infinite if they cannot be compared."""
        ranks = tuple(ranks)
        hosts = {self.hosts.get(rank) for rank in ranks}
        if len(hosts) == 1 and None not in hosts:
            return 0.0
        return max((self.clock_errors_s.get(rank, math.inf) for rank in ranks), default=math.inf)


def join(reading: Reading, name: str = "job", ranks: int = 0, unmoved_s: float = 0.0) -> JobEvidence:
    """The job that `reading` tells of. `ranks` is its size where the caller knows it.

    `unmoved_s` is for how long the caller has seen no rank call anything.
    """
    stated = max(ranks, reading.ranks)
    members, unsure = numbered(reading.members, stated)
    members, apart = _split(members)
    kept, problems = _once(members)
    seen = {one.rank for one in kept}.union(*(source.ranks for source in reading.sources))
    size = max(stated, 1 + max(seen, default=-1))
    reported = {one.rank for one in kept if not one.status}
    no_file = tuple(rank for rank in range(size) if rank not in reported)
    comms: dict[str, list[MemberEvidence]] = {}
    for one in kept:
        comms.setdefault(one.comm, []).append(one)
    joined = {comm: _comm(comm, ones, no_file, size) for comm, ones in comms.items()}
    hosts = {one.rank: one.host for one in kept if one.host and one.rank >= 0}
    latest_s = max((call.shown_s() for one in kept for call in (*one.calls[-1:], *one.transfers[-1:])), default=0.0)
    gone = tuple(one for one in kept if one.status)
    unmoved = reported if unmoved_s >= UNMOVED_S else _unmoved(members)
    return JobEvidence(
        name, size, joined, hosts, no_file, gone, latest_s, unsure, tuple(problems), size_stated=stated > 0,
        per_host=reading.per_host, timeouts=reading.timeouts, apart=apart, unmoved=frozenset(unmoved),
    )  # fmt: skip


def _split(members: Iterable[MemberEvidence]) -> tuple[list[MemberEvidence], dict[str, tuple[MemberEvidence, ...]]]:
    """The members with ranks in the job, and the communicators of which not all members have one.

    A member without a rank that is in no communicator of the kind is left out, unless it is reported as gone.
    """
    members = list(members)
    unknown = {one.comm for one in members if one.local and one.rank < 0}
    apart: dict[str, list[MemberEvidence]] = {}
    for one in members:
        if one.comm in unknown:
            apart.setdefault(one.comm, []).append(one)
    kept = [one for one in members if one.comm not in unknown and (one.rank >= 0 or one.status)]
    return kept, {comm: tuple(ones) for comm, ones in apart.items()}


def _unmoved(members: Iterable[MemberEvidence]) -> set[int]:
    """Ranks that have called nothing between two reports: those of which only counts are known, at two times."""
    first_s: dict[tuple[str, int, int], float] = {}
    last: dict[tuple[str, int], MemberEvidence] = {}
    for one in sorted((one for one in members if one.counts and one.taken_s), key=lambda one: one.taken_s):
        first_s.setdefault((one.comm, one.rank, one.last_seq), one.taken_s)
        last[one.comm, one.rank] = one
    return {rank for (comm, rank), one in last.items() if one.taken_s - first_s[comm, rank, one.last_seq] >= UNMOVED_S}


def _shown(ones: list[MemberEvidence]) -> list[MemberEvidence]:
    """Members whose progress in a communicator is known.

    Where a dump has no call of a group left, its status has a number, which may be that of a send or receive. It counts
    collectives only in the group of all ranks, and in one in which others have called collectives alone.
    """
    called = any(one.calls or one.comm == _WORLD for one in ones)
    alone = called and not any(one.transfers for one in ones)
    return ones if alone else [one for one in ones if not _from_status(one)]


def _from_status(one: MemberEvidence) -> bool:
    return one.last_seq >= 0 and not (one.calls or one.transfers or one.counts or one.status)


def _once(members: Iterable[MemberEvidence]) -> tuple[list[MemberEvidence], list[Problem]]:
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
            one.status,
            one.source,
            one.format,
            one.transfers,
        )
        for one in sorted(_shown(ones), key=lambda one: one.rank)
        if not one.status
    }
    listed = Counter(one.members for one in ones if one.members).most_common(1)
    size = max((one.size for one in ones), default=0)
    gone = {one.rank for one in ones if one.status and one.rank >= 0}
    if listed or size == job_size:
        ranks = listed[0][0] if listed else tuple(range(job_size))
        silent = tuple(rank for rank in ranks if rank not in members)
        return CommEvidence(name, members, ranks, silent, exact=True, broken=bool(gone), listed=ranks)
    lacking = size - len(members)
    silent = tuple(sorted(gone if len(gone) == lacking else gone.union(no_file))) if lacking > 0 else ()
    return CommEvidence(name, members, tuple(members), silent, exact=len(silent) == max(lacking, 0), broken=bool(gone))
