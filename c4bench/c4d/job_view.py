"""What is known of a job: the newest record of every rank, operation and connection, and when each last moved."""

import statistics
from collections import deque
from collections.abc import Mapping

import msgspec

from c4bench.c4d.comm_view import CommView
from c4bench.c4d.devices import NicView
from c4bench.c4d.localise import Cell
from c4bench.c4d.seats import Seats
from c4bench.c4d.thresholds import MIN_PERIOD_SAMPLES
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, Failure, OpRecord, RankRecord

ConnKey = tuple[str, int, int, str, str, int]
Ways = Mapping[tuple[str, str, int], tuple[str, ...]]  # source, destination, source port -> the links' far addresses
EndKey = tuple[str, str, str, int]  # communicator, source, destination, QP of the sending end

_INTERVALS_KEPT = 512
_LATEST_INTERVALS = 8
_NEVER = -float("inf")
_UNANSWERED = "RETRY_EXC_ERR"  # InfiniBand's "transport retry counter exceeded"


class ConnView(msgspec.Struct):
    """A connection's newest record, the host that wrote it, and when (its clock) any counter last moved."""

    record: ConnRecord
    host: str
    moved_s: float


class Death(msgspec.Struct, frozen=True):
    """A rank's process was first seen in `state` by the window of `host` that ended at `seen_s` (its clock)."""

    rank: int
    host: str
    state: str
    exit_code: int | None
    seen_s: float


class JobView:
    """Everything the detector keeps about one job.

    Ranks are the job's, not a communicator's. `moved_s`: end of the last window in which anything of a rank changed.
    `acted_s`: when a rank last entered or left an operation or had a message acknowledged; `progress_s`: the same of a
    (communicator, host). All on the host's clock. `told` is what the rank said that first could not go on; `unanswered`
    are those who got no acknowledgement, and from whom, while both were alive. `ways` is read anew each time: what is
    planned later is known then. `devices` are the NICs of all jobs.
    """

    def __init__(self, job: str, ways: Ways | None = None, devices: Mapping[str, NicView] | None = None) -> None:
        self.job = job
        self.ways = {} if ways is None else ways
        self.devices = {} if devices is None else devices
        self.seats = Seats()
        self.comms: dict[str, CommView] = {}
        self.conns: dict[ConnKey, ConnView] = {}
        self.arrivals: dict[EndKey, ArrivalRecord] = {}
        self.process: dict[int, RankRecord] = {}
        self.deaths: dict[int, Death] = {}
        self.moved_s: dict[int, float] = {}
        self.acted_s: dict[int, float] = {}
        self.progress_s: dict[tuple[str, str], float] = {}
        self.told: Failure | None = None
        self.unanswered: set[tuple[int, int]] = set()
        self._last_event_s: dict[int, float] = {}
        self._last_entry: dict[tuple[str, int, str, int], OpRecord] = {}
        self._unbroken_from: dict[tuple[str, int], int] = {}
        self._intervals_s: deque[float] = deque(maxlen=_INTERVALS_KEPT)

    def period_s(self) -> float | None:
        """Median time between two operations of the same communicator, kind and size; None until it has shown."""
        if len(self._intervals_s) < MIN_PERIOD_SAMPLES:
            return None
        return statistics.median(self._intervals_s)

    def pace_s(self) -> float | None:
        """The period, or the latest few intervals' where those are longer: a job that has just slowed down."""
        period_s = self.period_s()
        if period_s is None:
            return None
        return max(period_s, statistics.median(list(self._intervals_s)[-_LATEST_INTERVALS:]))

    def introduce(self, record: CommRecord) -> None:
        """A communicator of the job."""
        self.comms[record.comm] = CommView(record, self.seats.introduce(record))

    def put_op(self, op: OpRecord, host_end_s: float) -> None:
        """Take in an operation record seen by the window that ended at `host_end_s`."""
        comm = self.comms[op.comm]
        rank = comm.seats[op.rank]
        before = comm.latest.get(op.rank)
        fresh = not comm.seen(op)
        if fresh or before != op:
            self.moved_s[rank] = host_end_s
        comm.put(op, self._gap_s(rank, before, op) if fresh else None)
        if fresh:
            self._note_interval(op, before)
        event_s = min(max(op.entered_s, op.finished_s), host_end_s)
        self._note_progress(op.comm, comm.hosts[op.rank], rank, event_s)
        self._last_event_s[rank] = max(event_s, self._last_event_s.get(rank, event_s))

    def put_conn(self, conn: ConnRecord, view: ConnView | None, host: str, host_end_s: float) -> None:
        """Take in a connection record that passed the intake; `view` is what is known of the connection."""
        rank = self.comms[conn.comm].seats[conn.rank]
        if view is None:
            self.conns[key(conn)] = ConnView(conn, host, host_end_s)
        elif view.record != conn:
            view.record, view.moved_s = conn, host_end_s
        else:
            return
        self.moved_s[rank] = host_end_s
        self._note_progress(conn.comm, host, rank, min(conn.last_progress_s, host_end_s))

    def put_rank(self, rank: RankRecord, host_end_s: float) -> None:
        """Take in a process record; a process with a new id is a new life."""
        if self.process.get(rank.rank) == rank and not self.deaths:
            return
        self.seats.process(rank.rank, rank.host)
        before, mourned = self.process.get(rank.rank), bool(self.deaths)
        self.process[rank.rank] = rank
        if rank.state == "running" or (before is not None and before.pid != rank.pid):
            self.deaths.pop(rank.rank, None)
        if _dead(rank):
            death = Death(rank.rank, rank.host, rank.state, rank.exit_code, host_end_s)
            self.deaths.setdefault(rank.rank, death)
        if mourned and not self.deaths:
            self.told = None
            self.unanswered.clear()

    def hear(self, comm: str, failure: Failure) -> None:
        """A member of a communicator cannot go on; the first word is remembered until all ranks run again."""
        view = self.comms.get(comm)
        if view is None or failure.rank not in view.seats:
            return
        rank, peer = view.seats[failure.rank], view.seats.get(failure.peer, -1)
        if self.told is None:
            self.told = msgspec.structs.replace(failure, rank=rank, peer=peer)
        # Who has ended answers nobody, on the best of networks.
        if failure.status == _UNANSWERED and peer in self.process and peer not in self.deaths:
            self.unanswered.add((rank, peer))

    def sender(self, view: "ConnView") -> int:
        """The job's rank that sends on a connection."""
        return self.comms[view.record.comm].seats[view.record.rank]

    def receiver(self, view: "ConnView") -> int:
        """The job's rank that receives on a connection."""
        return self.comms[view.record.comm].seats[view.record.peer]

    def nics(self, rank: int) -> tuple[str, ...]:
        """The NICs that a rank uses in any of its communicators."""
        found: dict[str, None] = {}
        for comm in self.comms.values():
            own = (member for member in comm.record.members if comm.seats[member.rank] == rank)
            found.update((nic, None) for member in own for nic in member.nics)
        return tuple(found)

    def users(self) -> dict[str, set[int]]:
        """The ranks that use each NIC, in any of their communicators."""
        found: dict[str, set[int]] = {}
        for comm in self.comms.values():
            for member in comm.record.members:
                for nic in member.nics:
                    found.setdefault(nic, set()).add(comm.seats[member.rank])
        return found

    def links(self) -> dict[Cell, tuple[str, ...]]:
        """The links that connections cross, as far as their ways are known."""
        conns = (view.record for view in self.conns.values()) if self.ways else ()
        return {cell_of(conn): self.ways.get((conn.source, conn.destination, conn.source_port), ()) for conn in conns}

    def arrived(self, conn: ConnRecord) -> int | None:
        """How many messages of a connection its receiver has seen; None if it does not say."""
        end = self.arrivals.get((conn.comm, conn.source, conn.destination, conn.qp))
        return None if end is None else end.messages

    def _note_progress(self, comm: str, host: str, rank: int, time_s: float) -> None:
        if time_s > self.acted_s.get(rank, _NEVER):
            self.acted_s[rank] = time_s
        if time_s > self.progress_s.get((comm, host), _NEVER):
            self.progress_s[comm, host] = time_s

    def _gap_s(self, rank: int, before: OpRecord | None, op: OpRecord) -> float | None:
        last_s = self._last_event_s.get(rank)
        if before is None or last_s is None or before.seq != op.seq - 1 or before.finished_s == 0.0:
            return None
        return max(0.0, op.entered_s - last_s)

    def _note_interval(self, op: OpRecord, before: OpRecord | None) -> None:
        """Learn the period from two like operations, unless records between them were lost."""
        if before is None or before.seq != op.seq - 1:
            self._unbroken_from[op.comm, op.rank] = op.seq
        signature = (op.comm, op.rank, op.kind, op.size_bytes)
        last = self._last_entry.get(signature)
        self._last_entry[signature] = op
        if last is not None and last.seq >= self._unbroken_from[op.comm, op.rank] and op.entered_s > last.entered_s:
            self._intervals_s.append(op.entered_s - last.entered_s)


def cell_of(conn: ConnRecord) -> Cell:
    """Which cell of the matrix a connection is in now; path planning may move it to another."""
    return (conn.source, conn.destination, str(conn.source_port))


def key(conn: ConnRecord) -> ConnKey:
    """What identifies a connection for as long as its counters run."""
    return (conn.comm, conn.rank, conn.peer, conn.source, conn.destination, conn.qp)


def _dead(rank: RankRecord) -> bool:
    """A process that is gone and did not end well; a clean exit is a fault only if somebody still waits for it."""
    return rank.state == "killed" or (rank.state == "exited" and rank.exit_code != 0)
