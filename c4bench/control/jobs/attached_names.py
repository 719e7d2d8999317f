"""What attached processes' records stand for: their NICs and the ranks at the other ends of their connections.

A process knows its queue pairs by addresses and numbers, and not who is at the other end; both ends of a connection are
recorded with the same addresses and number, by two processes. So all connections of a job become those of one
communicator, `JOB/verbs`, of the ranks that have any. Its members do not change: more of them make another one, once
the job has connected (`_SETTLED_S`). Communicators in which ranks call collectives are put together from what each
rank knows (`attached_comms.py`).
"""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from c4bench.control.jobs.attached_comms import AttachedComms, is_partial
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import CommRecord, Member
from c4bench.model.window import Caller, EndName, HostNames, Window

_Name = TypeVar("_Name")
# The communicator that processes record their queue pairs in.
VERBS = "verbs"
_SETTLED_S = 0.5
# Which of its NICs a host's rank uses where no queue pair shows it.
_UNKNOWN = "?"


class Seat(msgspec.Struct, frozen=True):
    """The rank in a job that a process is, and whether it has `ended`."""

    job: str
    rank: int
    ended: bool = False


class _Key(NamedTuple):
    """What both ends of a connection are recorded with."""

    source: str
    destination: str
    qp: int


class _Host(msgspec.Struct):
    """A host's NICs by address, and the ranks by their seats in jobs; its names as they came, and what they stand for.

    `sends` and `receives` are the ranks that have recorded an end.
    """

    nics: Mapping[str, Nic] = {}
    seats: frozenset[tuple[str, int]] = frozenset()
    sent: HostNames = HostNames()
    sends: dict[_Key, Seat] = {}
    receives: dict[_Key, Seat] = {}
    named: HostNames = HostNames()
    named_at: int = -1


class _Comm(msgspec.Struct):
    """The communicator of a job's connections: its members' hosts and NICs by rank, and those that have been `seen`.

    `places` are the members' numbers. `changed_s` is when a member was last seen that is new.
    """

    seen: dict[int, tuple[str, frozenset[str]]] = {}
    changed_s: float = 0.0
    made: dict[int, tuple[str, frozenset[str]]] = {}
    number: int = 0
    record: CommRecord | None = None
    places: dict[int, int] = {}


class AttachedNames:
    """Translates windows of hosts with attached processes."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._host_of: dict[str, str] = {}
        self._comms: dict[str, _Comm] = {}
        self._called = AttachedComms()
        # Counts what may change the names of any host.
        self._epoch = 0

    def place(self, host: str, nics: Mapping[str, Nic], seats: Iterable[Seat]) -> None:
        """A host has these NICs, by address, and these processes."""
        known = self._hosts.setdefault(host, _Host())
        self._host_of = {address: name for address, name in self._host_of.items() if name != host}
        self._host_of |= dict.fromkeys(nics, host)
        known.nics, known.seats = nics, frozenset((seat.job, seat.rank) for seat in seats)
        known.sent = HostNames()
        self._epoch += 1
        if not known.seats:
            del self._hosts[host]
            self._called.note(host, (), ())

    def forget(self, job: str) -> None:
        """A job has ended."""
        self._comms.pop(job, None)
        self._called.forget(job)

    def nic(self, address: str) -> Nic | None:
        """The NIC with this address on a host with attached processes."""
        host = self._hosts.get(self._host_of.get(address, ""))
        return host.nics.get(address) if host else None

    def translate(self, window: Window) -> Window:
        """The window with the names of NICs and ranks; ends whose other end is not known stand for nothing."""
        host = self._hosts.get(window.host)
        if host is None:
            return window
        if window.names is not host.sent:
            self._note_ends(host, window.names)
            self._called.note(window.host, window.names.comms, host.seats)
        if host.named_at != self._epoch:
            self._look(host)
        self._make({job for job, _ in host.seats})
        if host.named_at != self._epoch:
            host.named, host.named_at = self._named(host), self._epoch
        return msgspec.structs.replace(window, names=host.named)

    def _note_ends(self, host: _Host, names: HostNames) -> None:
        """Note which ranks have recorded which ends, by NICs of their own host."""
        sends = {
            _key(end): seat for end in names.sends if end and (seat := _seat(host, end)) and end.source in host.nics
        }
        receives = {
            _key(end): seat
            for end in names.receives
            if end and (seat := _seat(host, end)) and end.destination in host.nics
        }
        host.sent = names
        host.sends, host.receives = sends, receives
        self._epoch += 1

    def _look(self, host: _Host) -> None:
        """Note the members that a host's connections show."""
        for key, seat in host.sends.items():
            if self._peer(key, seat, sending=True) is not None:
                self._see(seat, host.nics[key.source])
        for key, seat in host.receives.items():
            if self._peer(key, seat, sending=False) is not None:
                self._see(seat, host.nics[key.destination])

    def _see(self, seat: Seat, nic: Nic) -> None:
        comm = self._comms.setdefault(seat.job, _Comm())
        before = comm.seen.get(seat.rank)
        nics = before[1] if before and before[0] == nic.host else frozenset[str]()
        if nic.name not in nics:
            comm.seen = {**comm.seen, seat.rank: (nic.host, nics | {nic.name})}
            comm.changed_s = time.monotonic()

    def _make(self, jobs: Iterable[str]) -> None:
        """Make the communicators of jobs in which nobody new has been seen for a while."""
        for job in jobs:
            comm = self._comms.get(job)
            if comm and comm.seen != comm.made and time.monotonic() - comm.changed_s >= _SETTLED_S:
                comm.made, comm.number = comm.seen, comm.number + 1
                ranks = sorted(comm.made)
                comm.places = {rank: place for place, rank in enumerate(ranks)}
                members = [
                    Member(place, comm.made[rank][0], tuple(sorted(comm.made[rank][1])), rank)
                    for place, rank in enumerate(ranks)
                ]
                comm.record = CommRecord(f"{job}/{VERBS}#{comm.number}", job, tuple(members))
                self._epoch += 1

    def _peer(self, key: _Key, seat: Seat, *, sending: bool) -> Seat | None:
        """The rank at the other end of a connection, if it is of the same job."""
        host = self._hosts.get(self._host_of.get(key.destination if sending else key.source, ""))
        if host is None:
            return None
        peer = (host.receives if sending else host.sends).get(key)
        return peer if peer and peer.job == seat.job else None

    def _named(self, host: _Host) -> HostNames:
        sent = host.sent
        return HostNames(
            tuple([record and self._comm(host, record) for record in sent.comms]),
            tuple([caller and self._caller(host, caller) for caller in sent.callers]),
            tuple([end and self._end(host, end, sending=True) for end in sent.sends]),
            tuple([end and self._end(host, end, sending=False) for end in sent.receives]),
            sent.calls,
        )

    def _of_verbs(self, host: _Host, comm: str) -> _Comm | None:
        """The communicator that a process's own stands for; None for any other."""
        job, slash, name = comm.rpartition("/")
        if not slash or name != VERBS or not any(job == own for own, _ in host.seats):
            return None
        return self._comms.setdefault(job, _Comm())

    def _comm(self, host: _Host, record: CommRecord) -> CommRecord | None:
        """A communicator with all its members; None while they are not known."""
        if (comm := self._of_verbs(host, record.comm)) is not None:
            return comm.record
        return self._called.whole(record.comm) if is_partial(record) else record

    def _caller(self, host: _Host, caller: Caller) -> Caller | None:
        comm = self._of_verbs(host, caller.comm)
        if comm is None:
            whole = self._called.whole(caller.comm)
            return caller._replace(comm=whole.comm) if whole else caller
        if comm.record is None or caller.rank not in comm.places:
            return None
        return Caller(comm.record.comm, comm.places[caller.rank])

    def _end(self, host: _Host, end: EndName, *, sending: bool) -> EndName | None:
        if (comm := self._of_verbs(host, end.comm)) is None:
            own = any(end.comm.startswith(f"{job}/") for job, _ in host.seats)
            return self._of_calls(end, sending=sending) if own else end
        key = _key(end)
        seat = (host.sends if sending else host.receives).get(key)
        peer = self._peer(key, seat, sending=sending) if seat else None
        source, destination = self.nic(end.source), self.nic(end.destination)
        if comm.record is None or seat is None or peer is None or source is None or destination is None:
            return None
        if seat.rank not in comm.places or peer.rank not in comm.places:
            return None
        places = comm.places[seat.rank], comm.places[peer.rank]
        return EndName(comm.record.comm, *places, source.name, destination.name, end.qp)

    def _of_calls(self, end: EndName, *, sending: bool) -> EndName | None:
        """An end whose library does not know its NICs; None where queue pairs carry the same data: that counts once."""
        whole = self._called.whole(end.comm)
        if whole is None or (whole.job in self._comms and self._comms[whole.job].seen):
            return None
        sender, receiver = (end.rank, end.peer) if sending else (end.peer, end.rank)
        if not (0 <= sender < len(whole.members) and 0 <= receiver < len(whole.members)):
            return None
        source, destination = (f"{whole.members[rank].host}/{_UNKNOWN}" for rank in (sender, receiver))
        return end._replace(comm=whole.comm, source=source, destination=destination)


def _key(end: EndName) -> _Key:
    return _Key(end.source, end.destination, end.qp)


def _seat(host: _Host, end: EndName) -> Seat | None:
    """The rank that has recorded an end, if it is one of an attached process of the host."""
    job, _, name = end.comm.rpartition("/")
    return Seat(job, end.rank) if name == VERBS and (job, end.rank) in host.seats else None
