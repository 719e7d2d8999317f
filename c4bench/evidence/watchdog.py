"""Lines of PyTorch's NCCL watchdog and heartbeat monitor: who gave up waiting in which operation, and how far it was.

Source: `ProcessGroupNCCL.cpp` of PyTorch 2.0 to 2.14. `[rankN]` is the rank in the job (from 2.2 on), `[Rank n]` and
the number in a group's bracket the rank in the group. A group has a GUID, its name on all ranks, from 2.5 on; before,
its number is each rank's own, but 0 is the group of all ranks. What waited in an operation is not what held it up.
"""

import re
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.budget import Account
from c4bench.evidence.fields import integer, kind
from c4bench.evidence.limits import MOST_RANKS, short_name
from c4bench.evidence.lines import Line
from c4bench.model.evidence import Call, CallState, LogEvent, MemberEvidence, TimedOut

NEEDLES = (b"atchdog", b"ast enqueued")
_WORLD = "0"
_JOB_RANK = re.compile(r"\[rank(\d{1,7})\]")
_TIMEOUT = re.compile(
    r"(?:\[Rank (\d{1,7})\]:? )?Watchdog caught collective operation timeout:?\s{0,9}"
    r"WorkNCCL\((.{1,600}?)\bTimeout\(ms\)=(\d{1,12})\)"
)
_FIELD = re.compile(r"\b(SeqNum|OpType|NumelIn|NumelOut)=(\w{1,64})")
_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID (\w{1,64}))? ?(?:\((\w{1,64})\))? ?Rank (\d{1,7})\]")
_STATUS = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}),(?:[^,]{1,99},){0,3}? last completed (?:NCCL )?work: (-?\d{1,18})"
)
_WORK = re.compile(r"(?:detected by watchdog at work|Timeout at NCCL work)(?: sequence id)?: (\d{1,18})")
_STUCK = re.compile(r"(?:watchdog got stuck for|Heartbeat monitor timed out)(?: (\d{1,9}) seconds)?")
_TIME = re.compile(r"\[[EFWI](\d{1,2})(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?)")
_GATHERS, _SCATTERS = ("all_gather", "all_gather_into_tensor"), ("reduce_scatter", "reduce_scatter_tensor")


class _Status(NamedTuple):
    """How far a rank has come in a group; `work` is the operation that it gave up in, -1 if the line has none."""

    comm: str
    group: str
    member: int
    enqueued: int
    completed: int
    work: int


class Watchdog:
    """What the lines of one file tell, each wait of a rank once."""

    def __init__(self, file: str, account: Account) -> None:
        self._file, self._account = file, account
        self._waits: dict[tuple[int, int, int], TimedOut] = {}
        self._states: dict[int, dict[tuple[str, str, int], _Status]] = {}
        self.events: list[LogEvent] = []

    def read(self, line: Line, number: int) -> bool:
        """Read line `number`; False if it is none of these. Raises OverBudgetError."""
        text = line.text
        prefix = _JOB_RANK.search(text)
        rank = int(prefix[1]) if prefix else line.rank
        group = _GROUP.search(text)
        comm = "" if group is None else _comm(group, rank)
        if rank < 0 and comm == _WORLD and group:
            rank = int(group[4])
        if rank >= MOST_RANKS:
            return False
        status, wait, stuck = _STATUS.search(text), _TIMEOUT.search(text), _STUCK.search(text)
        if status and group:
            work, shown = (
                _WORK.search(text),
                short_name(group[3] or (f"group {group[2]}" if group[2] else f"PG {group[1]}")),
            )
            self._add_status(rank, _Status(comm, shown, int(group[4]), integer(status[1]), integer(status[2]),
                                           integer(work[1]) if work else -1))  # fmt: skip
        if wait:
            self._add_wait(wait, rank, line, number)
        elif stuck:
            self._account.spend(records=1)
            took = f" for {stuck[1]} s" if stuck[1] else ""
            self._add_event("heartbeat", f"its watchdog has made no progress{took}", rank, line, number)
        return bool(status or wait or stuck)

    def _add_status(self, rank: int, status: _Status) -> None:
        mine = self._states.setdefault(rank, {})
        key = status.comm, status.group, status.member
        if key not in mine:
            self._account.spend(records=1)
        elif status.work < 0:
            status = status._replace(work=mine[key].work)
        mine[key] = status

    def _add_wait(self, found: re.Match[str], rank: int, line: Line, number: int) -> None:
        fields = dict(_FIELD.findall(found[2]))
        seq, called = integer(fields.get("SeqNum")), short_name(kind(fields.get("OpType", "")))
        member = int(found[1]) if found[1] else -1
        if (rank, member, seq) in self._waits:
            return
        self._account.spend(records=1)
        after_s = int(found[3]) / 1000
        size = _size(called, integer(fields.get("NumelIn")), integer(fields.get("NumelOut")))
        self._waits[rank, member, seq] = TimedOut(
            self._file, rank, seq, called, after_s, member=member, size=size, host=line.host, pid=line.pid,
            at=written_at(line),
        )  # fmt: skip
        where = f"{called or 'an operation'}{f' #{seq}' if seq >= 0 else ''}"
        self._add_event("timeout", f"timed out after {after_s:g} s in {where}", rank, line, number)

    def _add_event(self, what: str, words: str, rank: int, line: Line, number: int) -> None:
        at = written_at(line)
        self.events.append(LogEvent(self._file, number, what, words, rank, line.host, line.pid, at, consequence=True))

    def timeouts(self) -> tuple[TimedOut, ...]:
        """The waits, with what other lines of the same rank tell of the group."""
        # The text of an exception repeats a wait without the rank in the job.
        numbered = {(one.member, one.seq) for one in self._waits.values() if one.rank >= 0}
        waits = (one for one in self._waits.values() if one.rank >= 0 or (one.member, one.seq) not in numbered)
        return tuple(self._in_group(one) for one in waits)

    def _in_group(self, one: TimedOut) -> TimedOut:
        mine = [status for status in self._states.get(one.rank, {}).values() if one.member in (status.member, -1)]
        exact = [status for status in mine if status.work == one.seq]
        within = [status for status in mine if status.completed < one.seq <= status.enqueued]
        if len(found := exact or within) != 1:
            return one
        status = found[0]
        return replace(one, comm=status.comm, group=status.group, member=status.member, enqueued=status.enqueued,
                       completed=status.completed)  # fmt: skip

    def members(self, file_format: str) -> tuple[MemberEvidence, ...]:
        """How far each rank of the job has come in each group whose name on all ranks is known."""
        waits = {(one.rank, one.comm): one for one in self.timeouts() if one.comm}
        found = []
        for rank, statuses in self._states.items():
            for status in statuses.values():
                if rank < 0 or not status.comm:
                    continue
                wait = waits.get((rank, status.comm))
                calls = (Call(wait.seq, wait.kind, CallState.STARTED),) if wait else ()
                found.append(
                    MemberEvidence(
                        self._file, file_format, status.comm, rank, status.member, size=wait.size if wait else 0,
                        host=wait.host if wait else "", calls=calls, last_seq=status.enqueued,
                        completed_seq=status.completed,
                    )
                )  # fmt: skip
        return tuple(found)


def _comm(group: re.Match[str], rank: int) -> str:
    """A name of a group that ranks share, empty if there is none.

    Where a group has only each rank's own number of it, ranks of the job that are as many in it have all before them in
    it too, so that one number of theirs is one group.
    """
    shared = group[1] == _WORLD or int(group[4]) == rank
    return short_name(group[2] or ("" if not shared else _WORLD if group[1] == _WORLD else f"PG {group[1]}"))


def written_at(line: Line) -> str:
    """When a line was written: as its own program says, else as its prefix does; empty if neither does."""
    own = _TIME.search(line.text)
    return f"{int(own[1]):02}-{own[2]} {own[3]}" if own else line.at


def _size(called: str, put_in: int, put_out: int) -> int:
    """How many ranks a group has, as the elements that a gather or scatter takes and gives show; 0 if they do not."""
    less, more = (put_in, put_out) if called in _GATHERS else (put_out, put_in)
    if called not in (*_GATHERS, *_SCATTERS) or less <= 0 or more % less:
        return 0
    return more // less if more // less < MOST_RANKS else 0
