"""Communicators of which each rank knows only itself.

Libraries in programs of others (`native/`) write telemetry files as our own ranks do. NCCL and MPI tell them how many
ranks a communicator has, but neither their hosts nor any NIC. So their record of a communicator has the rank itself and
the last rank, without a host, and their ends of connections have no NICs: `Assembler` fills these in once all ranks are
known.
"""

import msgspec

from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import EndName, HostNames, Window


class _Fragments:
    """What is known of one communicator: its members by rank, and which hosts list it."""

    def __init__(self, record: CommRecord) -> None:
        self._record, self._size = record, _size(record)
        self._members: dict[int, Member] = {}
        self.hosts: set[str] = set()
        self.whole: CommRecord | None = None

    def add(self, record: CommRecord, host: str) -> bool:
        """Add what a rank on `host` knows; whether the communicator is whole by that.

        Ranks of other hosts, a rank that is there already, and records of another size or job say nothing.
        """
        self.hosts.add(host)
        if self.whole or (_size(record), record.job) != (self._size, self._record.job):
            return False
        for member in record.members:
            if member.host == host and 0 <= member.rank < self._size:
                nics = member.nics or (_unknown_nic(host),)
                self._members.setdefault(member.rank, msgspec.structs.replace(member, nics=nics))
        if len(self._members) == self._size:
            members = tuple(self._members[rank] for rank in range(self._size))
            self.whole = msgspec.structs.replace(self._record, members=_seated(members))
        return self.whole is not None


class Assembler:
    """Makes windows of attached ranks into such as agents send of ranks that they have started.

    A communicator and its operations and connections are left out until each of its ranks has been seen.
    """

    def __init__(self) -> None:
        self._comms: dict[str, _Fragments] = {}
        self._version = 0
        # By host: the names of its latest window, at which version they were assembled, and as what.
        self._assembled: dict[str, tuple[HostNames, int, HostNames]] = {}

    def assemble(self, window: Window) -> Window:
        """The window with whole communicators and with the NICs of connections."""
        before, version, names = self._assembled.get(window.host, (None, -1, window.names))
        if before is not window.names:
            self._note(window)
        if before is not window.names or version != self._version:
            names = self._names(window.names)
            self._assembled[window.host] = window.names, self._version, names
        return msgspec.structs.replace(window, names=names)

    def _note(self, window: Window) -> None:
        partial = {record.comm: record for record in window.comms if _is_partial(record)}
        for comm in [comm for comm, known in self._comms.items() if window.host in known.hosts - set(partial)]:
            self._comms[comm].hosts.discard(window.host)
            if not self._comms[comm].hosts:
                del self._comms[comm]
        for record in filter(_is_partial, window.comms):
            known = self._comms.setdefault(record.comm, _Fragments(record))
            self._version += known.add(record, window.host)

    def _names(self, names: HostNames) -> HostNames:
        return msgspec.structs.replace(
            names,
            comms=tuple(None if record is None else self._whole(record) for record in names.comms),
            sends=tuple(None if end is None else self._end(end, end.rank, end.peer) for end in names.sends),
            receives=tuple(None if end is None else self._end(end, end.peer, end.rank) for end in names.receives),
        )

    def _whole(self, record: CommRecord) -> CommRecord | None:
        return self._comms[record.comm].whole if _is_partial(record) else record

    def _end(self, end: EndName, sender: int, receiver: int) -> EndName | None:
        """An end with its NICs; None while its communicator is not whole, or if it has no such ranks."""
        if end.source and end.destination:
            return end
        known = self._comms.get(end.comm)
        members = known.whole.members if known and known.whole else ()
        if not (0 <= sender < len(members) and 0 <= receiver < len(members)):
            return None
        return end._replace(source=members[sender].nics[0], destination=members[receiver].nics[0])


def _seated(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The members, without seats where one is not known, or where ranks of one process have the same."""
    seats = {member.seat for member in members}
    if -1 not in seats and len(seats) == len(members):
        return members
    return tuple(msgspec.structs.replace(member, seat=-1) for member in members)


def _is_partial(record: CommRecord) -> bool:
    return len(record.members) < _size(record) or any(not member.host for member in record.members)


def _size(record: CommRecord) -> int:
    return 1 + max((member.rank for member in record.members), default=-1)


def _unknown_nic(host: str) -> str:
    """Which of its NICs a host's rank uses is not known."""
    return f"{host}/?"
