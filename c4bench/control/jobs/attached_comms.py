"""Communicators of attached processes, of which each rank knows only itself.

What a program calls of NCCL or MPI is recorded with its rank in the communicator and with how many there are. Agents
add the host and the job's rank of their own processes. Once all ranks have been seen a communicator is whole, and its
operations count.
"""

from collections.abc import Collection, Iterable

import msgspec

from c4bench.model.telemetry import CommRecord, Member

# Names of communicators that have ended are known up to so many, so that another one by the name is not taken for it.
_NAMES_KEPT = 4_096


class _Fragments:
    """What is known of one communicator: its members by rank, and which hosts list it."""

    def __init__(self, record: CommRecord, name: str) -> None:
        self._record, self._size, self._name = record, _size(record), name
        self._members: dict[int, Member] = {}
        self.hosts: set[str] = set()
        self.whole: CommRecord | None = None

    def add(self, record: CommRecord, host: str, seats: Collection[tuple[str, int]]) -> None:
        """Add what a rank on `host` knows, where ranks of jobs have these seats.

        Ranks of other hosts or without a seat there, a rank that is there already, and records of another size or job
        say nothing.
        """
        self.hosts.add(host)
        if self.whole or (_size(record), record.job) != (self._size, self._record.job):
            return
        for member in record.members:
            if member.host == host and (record.job, member.seat) in seats and 0 <= member.rank < self._size:
                self._members.setdefault(member.rank, member)
        if len(self._members) == self._size:
            members = tuple(self._members[rank] for rank in range(self._size))
            self.whole = CommRecord(self._name, self._record.job, _seated(members))


class AttachedComms:
    """The communicators of attached processes; a name that comes again after all have left it gets a number."""

    def __init__(self) -> None:
        self._comms: dict[str, _Fragments] = {}
        self._made: dict[str, int] = {}

    def note(self, host: str, records: Iterable[CommRecord | None], seats: Collection[tuple[str, int]]) -> None:
        """Note the communicators that a host lists now, where ranks of jobs have these seats."""
        partial = [record for record in records if record is not None and is_partial(record)]
        listed = {record.comm for record in partial}
        for name in [name for name, known in self._comms.items() if host in known.hosts and name not in listed]:
            self._comms[name].hosts.discard(host)
            if not self._comms[name].hosts:
                del self._comms[name]
        for record in partial:
            self._fragments(record).add(record, host, seats)

    def _fragments(self, record: CommRecord) -> _Fragments:
        if record.comm not in self._comms:
            number = self._made[record.comm] = self._made.get(record.comm, 0) + 1
            name = record.comm if number == 1 else f"{record.comm}#{number}"
            self._comms[record.comm] = _Fragments(record, name)
            if len(self._made) > _NAMES_KEPT:
                del self._made[next((old for old in self._made if old not in self._comms), record.comm)]
        return self._comms[record.comm]

    def whole(self, comm: str) -> CommRecord | None:
        """The communicator that ranks know by this name; None while it is not whole."""
        known = self._comms.get(comm)
        return known.whole if known else None

    def forget(self, job: str) -> None:
        """A job has ended."""
        self._made = {name: number for name, number in self._made.items() if not name.startswith(f"{job}/")}
        self._comms = {name: known for name, known in self._comms.items() if not name.startswith(f"{job}/")}


def is_partial(record: CommRecord) -> bool:
    """Whether a record is of a communicator of which its rank does not know all members."""
    return any(not member.host for member in record.members) or len(record.members) < _size(record)


def _seated(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The members, without seats where ranks of one process have the same."""
    if len({member.seat for member in members}) == len(members):
        return members
    return tuple(msgspec.structs.replace(member, seat=-1) for member in members)


def _size(record: CommRecord) -> int:
    return 1 + max((member.rank for member in record.members), default=-1)
