"""What is known of a job: the newest record of every rank, operation and connection, and when each last moved."""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from c4bench.c4d.clocks import HostClocks
from c4bench.c4d.devices import NicView
from c4bench.c4d.intake import Intake
from c4bench.c4d.localise import Cell
from c4bench.c4d.seats import Seats
from c4bench.c4d.thresholds import MIN_PERIOD_SAMPLES
from c4bench.model.telemetry import ArrivalRecord, CommRecord, ConnRecord, Failure, OpRecord, RankRecord, Window

ConnKey = tuple[str, int, int, str, str, int]
Ways = Mapping[tuple[str, str, int], tuple[str, ...]]  # source, destination, source port -> the links' far addresses
EndKey = tuple[str, str, str, int]  # communicator, source, destination, QP of the sending end

_OPS_KEPT = 128
_INTERVALS_KEPT = 512
_LATEST_INTERVALS = 8
_NEVER = -float("inf")
_UNANSWERED = "RETRY_EXC_ERR"  # InfiniBand's "transport retry counter exceeded"


class OpSample(msgspec.Struct, frozen=True):
    """A finished operation as its ranks saw it: who was inside how long, after how much computing (None: unseen)."""

    comm: str
    seq: int
    duration_s: dict[int, float]
    gap_s: dict[int, float | None]
    entered_s: dict[int, float]


class CommView:
    """A communicator's recent operations. Its members are numbered within it; `seats` has their ranks in the job."""

    def __init__(self, record: CommRecord, seats: dict[int, int]) -> None:
        self.record = record
        self.seats = seats
        self.hosts = {member.rank: member.host for member in record.members}
        self.latest: dict[int, OpRecord] = {}
        # Members that have closed it: no record of theirs will ever say how their last operation ended.
        self.left: set[int] = set()
        self._finished: dict[int, int] = {}
        self._ops: dict[int, dict[int, OpRecord]] = {}
        self._gaps: dict[tuple[int, int], float | None] = {}
        self._judged = -1

    def put(self, op: OpRecord, gap_s: float | None) -> None:
        """Keep `op`; `gap_s` is the computing before it, given when it is first seen."""
        self._gaps.setdefault((op.seq, op.rank), gap_s)
        if op.seq > self._judged:
            self._ops.setdefault(op.seq, {})[op.rank] = op
        latest = self.latest.get(op.rank)
        if latest is None or op.seq >= latest.seq:
            self.latest[op.rank] = op
        if op.finished_s > 0.0:
            self._finished[op.rank] = max(op.seq, self._finished.get(op.rank, -1))
        while len(self._ops) > _OPS_KEPT:
            self._forget(min(self._ops))

    def seen(self, op: OpRecord) -> bool:
        """Whether this rank's record of this operation was seen before, running or finished."""
        return (op.seq, op.rank) in self._gaps or op.seq <= self._judged

    def uncompleted(self, rank: int) -> OpRecord | None:
        """The first operation that `rank` has entered and not completed; operations of a communicator end in order."""
        latest = self.latest.get(rank)
        if latest is None or latest.finished_s > 0.0 or rank in self.left:
            return None
        done = self.completed(rank)
        open_seqs = [seq for seq, ops in self._ops.items() if seq > done and rank in ops]
        return self._ops[min(open_seqs)][rank] if open_seqs else latest

    def completed(self, rank: int) -> int:
        """The latest operation that `rank` has completed; -1 before the first."""
        return self._finished.get(rank, -1)

    def at(self, seq: int) -> dict[int, OpRecord]:
        """The records of an operation that not all members have completed, by member."""
        return self._ops.get(seq, {})

    def finished(self) -> Iterator[OpSample]:
        """Operations that every member has finished, each once, in order."""
        for seq in sorted(self._ops):
            ops = self._ops[seq]
            if len(ops) == len(self.hosts) and all(op.finished_s > 0 for op in ops.values()):
                yield self._sample(seq, ops)
                self._forget(seq)
                self._judged = max(self._judged, seq)

    def _sample(self, seq: int, ops: dict[int, OpRecord]) -> OpSample:
        return OpSample(
            self.record.comm,
            seq,
            {rank: op.finished_s - op.entered_s for rank, op in ops.items()},
            {rank: self._gaps.get((seq, rank)) for rank in ops},
            {rank: op.entered_s for rank, op in ops.items()},
        )

    def _forget(self, seq: int) -> None:
        del self._ops[seq]
        for rank in self.hosts:
            self._gaps.pop((seq, rank), None)


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


class Ledger:
    """All jobs, and the clocks and NICs of the hosts they run on."""

    def __init__(self, intake: Intake, ways: Ways | None = None) -> None:
        self._ways = {} if ways is None else ways
        self.jobs: dict[str, JobView] = {}
        self.devices: dict[str, NicView] = {}
        self.clocks = HostClocks()
        self._intake = intake
        self._job_of: dict[str, JobView] = {}
        self._on_host: dict[str, set[str]] = {}

    def take(self, window: Window) -> None:
        """File every record of an admitted window under its job."""
        self.clocks.arrived(window.host, window.start_s, window.end_s)
        for record in window.comms:
            if record.comm not in self._job_of and self._intake.admit_comm(record, window.host):
                self._job_of[record.comm] = self._job(record.job)
                self._job_of[record.comm].introduce(record)
                for member in record.members:
                    self._on_host.setdefault(member.host, set()).add(record.comm)
        self._note_closed(window)
        for rank in window.ranks:
            if self._intake.admit_rank(rank, window.host):
                self._job(rank.job).put_rank(rank, window.end_s)
        self._take_devices(window)
        for op in _in_order(window.ops):
            job = self._job_of.get(op.comm)
            if job is not None and self._intake.admit_op(op, job.comms[op.comm].hosts, window):
                job.put_op(op, window.end_s)
        for conn in window.conns:
            job = self._job_of.get(conn.comm)
            if job is None:
                continue
            view = job.conns.get(key(conn))
            before = None if view is None else view.record
            if self._intake.admit_conn(conn, before, job.comms[conn.comm].hosts, window.host):
                job.put_conn(conn, view, window.host, window.end_s)
        for end in window.arrivals:
            job = self._job_of.get(end.comm)
            if job is not None and self._intake.admit_arrival(end, job.comms[end.comm].hosts, window.host):
                job.arrivals[end.comm, end.source, end.destination, end.qp] = end

    def _note_closed(self, window: Window) -> None:
        """A communicator that a host no longer lists has been closed by those of its members that run there."""
        running = {(rank.job, rank.rank) for rank in window.ranks if rank.state == "running"}
        listed = {record.comm for record in window.comms}
        for name in self._on_host.get(window.host, ()):
            comm, job = self._job_of[name].comms[name], self._job_of[name].job
            here = {member for member, host in comm.hosts.items() if host == window.host}
            gone = {member for member in here if (job, comm.seats[member]) in running} if name not in listed else set()
            comm.left = comm.left - here | gone

    def _take_devices(self, window: Window) -> None:
        for nic in window.nics:
            if self._intake.admit_nic(nic, window.host):
                self.devices.setdefault(nic.nic, NicView(window.host)).take(nic, window.end_s)

    def _job(self, name: str) -> JobView:
        return self.jobs.setdefault(name, JobView(name, self._ways, self.devices))


def cell_of(conn: ConnRecord) -> Cell:
    """Which cell of the matrix a connection is in now; path planning may move it to another."""
    return (conn.source, conn.destination, str(conn.source_port))


def key(conn: ConnRecord) -> ConnKey:
    """What identifies a connection for as long as its counters run."""
    return (conn.comm, conn.rank, conn.peer, conn.source, conn.destination, conn.qp)


def _dead(rank: RankRecord) -> bool:
    """A process that is gone and did not end well; a clean exit is a fault only if somebody still waits for it."""
    return rank.state == "killed" or (rank.state == "exited" and rank.exit_code != 0)


def _in_order(ops: Iterable[OpRecord]) -> list[OpRecord]:
    return sorted(ops, key=lambda op: (op.entered_s, op.seq))
