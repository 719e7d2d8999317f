"""The state of a job: the newest record of every rank, operation and connection, and when each last progressed."""

import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping

import msgspec

from c4bench.attribution.weigh import Cell, Links
from c4bench.c4d.observe.batch import Batch
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Bools, Floats
from c4bench.c4d.observe.connections import Arrivals, Connections, ConnView, Pairs
from c4bench.c4d.observe.members import Members, RankMapping
from c4bench.c4d.observe.nic_counters import NicView
from c4bench.c4d.observe.operations import Finished, Operations
from c4bench.c4d.observe.record_validator import RecordValidator
from c4bench.c4d.observe.shared_fabric import KnownPaths
from c4bench.c4d.thresholds import MEMORY_OPS, RECENT_SPANS, SETTLE_OPS, span_s
from c4bench.model.telemetry import CommRecord, Failure, OpRecord, RankRecord


class CommView:
    """Its members are numbered within it; `ranks` has their ranks in the job. `number` is its own in the job."""

    def __init__(self, record: CommRecord, ranks: dict[int, int], number: int, first: int, ops: Operations) -> None:
        self.record = record
        self.ranks = ranks
        self.hosts = {member.rank: member.host for member in record.members}
        # Members that have closed it: no record of theirs will ever say how their last operation ended.
        self.closed: set[int] = set()
        self.number = number
        self._first = first
        self._ops = ops

    def latest(self, member: int) -> OpRecord | None:
        """The newest record of a member."""
        return self._ops.newest(self._first + member)

    def uncompleted(self, member: int) -> OpRecord | None:
        """The first operation that a member has entered and not completed."""
        return None if member in self.closed else self._ops.uncompleted(self.number, self._first + member)

    def records_of(self, seq: int) -> dict[int, OpRecord]:
        """The records of an operation that not all members have completed, by member."""
        return self._ops.records_of(self.number, seq)


UNANSWERED = "RETRY_EXC_ERR"  # InfiniBand's "transport retry counter exceeded"


class ProcessExit(msgspec.Struct, frozen=True):
    """A rank's process was first seen in `state` by the window of `host` that ended at `seen_s` (its clock)."""

    rank: int
    host: str
    state: str
    exit_code: int | None
    seen_s: float


class ReportedFailure(msgspec.Struct, frozen=True):
    """A rank of the job said at `at_s` (master's clock) that it cannot go on; `status` as in `Failure`."""

    rank: int
    reason: str
    status: str
    at_s: float


class JobView:
    """Everything the detector keeps about one job.

    Ranks are the job's, not a communicator's. `first_failure` is the first one that a rank reported; `unanswered` are
    those who got no acknowledgement, and from whom, while both were alive. `paths` is read again each time, so that it
    includes what is planned later. `devices` are the NICs of all jobs.
    """

    def __init__(self, job: str, paths: KnownPaths | None = None, devices: Mapping[str, NicView] | None = None) -> None:
        self.job = job
        self.paths = KnownPaths() if paths is None else paths
        self.devices = {} if devices is None else devices
        self.mapping = RankMapping()
        self.comms: dict[str, CommView] = {}
        self.numbered: list[CommView] = []
        self.members = Members(self.mapping)
        self.pairs = Pairs()
        self.conns = Connections(self.members, self.pairs)
        self.arrivals = Arrivals(self.members, self.pairs)
        self._ops = Operations(self.members)
        self.process: dict[int, RankRecord] = {}
        self.exits: dict[int, ProcessExit] = {}
        self.first_failure: ReportedFailure | None = None
        self.unanswered: set[tuple[int, int]] = set()
        self._intervals_s: deque[float] = deque(maxlen=MEMORY_OPS)
        self._period_s: float | None = None
        self._links: dict[Cell, tuple[str, ...]] = {}
        self._links_of = (0, 0)
        self._unrouted: list[Cell] = []

    def period_s(self) -> float | None:
        """Median time between two operations of the same communicator, kind and size; None until it has shown."""
        return self._period_s

    @property
    def intervals_s(self) -> tuple[float, ...]:
        """The newest times between two operations of the same communicator, kind and size, oldest first."""
        return tuple(self._intervals_s)

    def span_s(self) -> float:
        """The length of a span of the delay matrix; of a job that has just slowed down by its latest few intervals."""
        if self._period_s is None:
            return span_s(None)
        return span_s(max(self._period_s, statistics.median(list(self._intervals_s)[-RECENT_SPANS:])))

    def add_comm(self, record: CommRecord) -> None:
        """A communicator of the job."""
        ranks = self.mapping.add_comm(record)
        number, first = self.members.add_comm(record, ranks)
        self._ops.make_room()
        self.comms[record.comm] = CommView(record, ranks, number, first, self._ops)
        self.numbered[number : number + 1] = [self.comms[record.comm]]
        self._look_up_again(record)

    def remove_comms(self, comms: Collection[str]) -> list[tuple[int, int]]:
        """Forget communicators that have ended; return their numbers and sizes. Later ones may have their numbers."""
        removed = []
        for comm in comms:
            self._look_up_again(self.comms.pop(comm).record)
            self.mapping.remove_comm(comm)
            removed.append(self.members.remove_comm(comm))
            self._ops.remove_comm(removed[-1][0])
        self.conns.remove(comms)
        self.arrivals.remove(comms)
        return removed

    def _look_up_again(self, record: CommRecord) -> None:
        """Look up what the numbers of a communicator's hosts stand for."""
        hosts = {member.host for member in record.members}
        for numbers in (self.members.callers, self.conns.numbers, self.arrivals.numbers):
            numbers.forget(hosts)

    def ingest(self, batch: Batch, validator: RecordValidator) -> None:
        """File a round of windows."""
        self._intervals_s.extend(self._ops.ingest(batch, validator))
        if len(self._intervals_s) >= SETTLE_OPS and self._ops.settled():
            self._period_s = statistics.median(self._intervals_s)
        self.conns.ingest(batch, validator)
        self.arrivals.ingest(batch, validator)

    def without_operations(self) -> Bools:
        """Which communicators, by their numbers, have recorded no operation so far."""
        return ~self._ops.recorded()

    def progress_s(self, clocks: HostClocks) -> Floats:
        """When each communicator last moved; see `Members.progress_s`."""
        return self.members.progress_s(clocks, self.without_operations())

    def finished(self) -> list[Finished]:
        """Operations that every member has finished, each once; of communicators of each size together."""
        return self._ops.finished()

    def ingest_process(self, rank: RankRecord, host_end_s: float) -> None:
        """Take in a process record; a process with a new id is a new life."""
        if self.process.get(rank.rank) == rank and not self.exits:
            return
        self.mapping.add_process(rank.rank, rank.host)
        before, mourned = self.process.get(rank.rank), bool(self.exits)
        self.process[rank.rank] = rank
        if rank.state == "running" or (before is not None and before.pid != rank.pid):
            self.exits.pop(rank.rank, None)
        # A clean exit is a fault only if somebody still waits for the rank.
        if rank.state == "killed" or (rank.state == "exited" and rank.exit_code not in {0, None}):
            death = ProcessExit(rank.rank, rank.host, rank.state, rank.exit_code, host_end_s)
            self.exits.setdefault(rank.rank, death)
        if mourned and not self.exits:
            self.forget_failures()

    def sits(self, comm: str, member: int, seat: int) -> bool:
        """Whether that member of a communicator is the job's rank `seat`, as far as either is known (-1 if not)."""
        view = self.comms.get(comm)
        members = view.record.members if view else ()
        stated = members[member].seat if 0 <= member < len(members) else -1
        return seat < 0 or stated < 0 or seat == stated

    def ingest_failure(self, comm: str, failure: Failure, at_s: float) -> None:
        """A member of a communicator cannot go on; the first report is remembered until `forget_failures`."""
        view = self.comms.get(comm)
        if view is None or failure.rank not in view.ranks:
            return
        rank, peer = view.ranks[failure.rank], view.ranks.get(failure.peer, -1)
        if self.first_failure is None:
            self.first_failure = ReportedFailure(rank, failure.reason, failure.status, at_s)
        # A process that has ended answers nobody, however good the network.
        if failure.status == UNANSWERED and peer in self.process and peer not in self.exits:
            self.unanswered.add((rank, peer))

    def forget_failures(self) -> None:
        """Forget what ranks reported: they are well again, or have gone on without their peers."""
        self.first_failure = None
        self.unanswered.clear()

    def records_of(self, comm: str, seq: int) -> dict[int, OpRecord]:
        """The records of an operation that not all members have completed, by rank of the job."""
        view = self.comms[comm]
        return {view.ranks[member]: op for member, op in view.records_of(seq).items()}

    def sender(self, view: ConnView) -> int:
        """The job's rank that sends on a connection."""
        return self.comms[view.record.comm].ranks[view.record.rank]

    def receiver(self, view: ConnView) -> int:
        """The job's rank that receives on a connection."""
        return self.comms[view.record.comm].ranks[view.record.peer]

    def nics(self, rank: int) -> tuple[str, ...]:
        """The NICs that a rank uses in any of its communicators."""
        nics: dict[str, None] = {}
        for comm in self.comms.values():
            own = (member for member in comm.record.members if comm.ranks[member.rank] == rank)
            nics.update((nic, None) for member in own for nic in member.nics)
        return tuple(nics)

    def users(self) -> dict[str, set[int]]:
        """The ranks that use each NIC, in any of their communicators."""
        users: dict[str, set[int]] = {}
        for comm in self.comms.values():
            for member in comm.record.members:
                for nic in member.nics:
                    users.setdefault(nic, set()).add(comm.ranks[member.rank])
        return users

    def flows(self) -> set[tuple[str, str, int]]:
        """What connections send: source NIC, destination NIC, source port."""
        return {(cell[0], cell[1], int(cell[2])) for cell in self.conns.cells if cell}

    def links(self) -> dict[Cell, tuple[str, ...]]:
        """The links that connections cross, as far as paths are known; the same object until either changes."""
        version = self.paths.learnt, self.conns.moves
        if version != self._links_of:
            cells = self.conns.cells if self.paths else ()
            paths = ((cell, (cell[0], cell[1], int(cell[2]))) for cell in cells if cell)
            self._links_of, self._links = version, {cell: self.paths.get(path, ()) for cell, path in paths}
            self._unrouted = [cell for cell, hops in self._links.items() if not hops]
        return self._links

    def suspect_links(self, bad: Iterable[Cell]) -> Links:
        """The links that connections cross, also where their paths are not known.

        A bad cell accuses every link that it may cross. A good cell clears only links that it is sure to cross: those
        of its NICs.
        """
        links = self.links()
        suspects = [cell for cell in bad if not links.get(cell)] if self.paths else []
        if not suspects and not self._unrouted:
            return links
        return {**links, **self._access_links(self._unrouted), **self.crossable(suspects)}

    def _access_links(self, cells: Iterable[Cell]) -> dict[Cell, tuple[str, ...]]:
        """The first and the last link of every path of these cells, as far as any path of their NICs shows."""
        first = {path[0]: hops[:1] for path, hops in self.paths.items()}
        last = {path[1]: hops[-1:] for path, hops in self.paths.items()}
        return {cell: (*first.get(cell[0], ()), *last.get(cell[1], ())) for cell in cells}

    def return_paths(self, cell: Cell) -> list[tuple[str, ...]]:
        """The known paths that acknowledgements of a cell may take."""
        back = (cell[1], cell[0])
        return [hops for path, hops in self.paths.items() if path[:2] == back and hops]

    def crossable(self, cells: Iterable[Cell]) -> dict[Cell, tuple[str, ...]]:
        """The links of each of these cells' paths; where that is not known, those of any between the same ends.

        Pairs of NICs that have links in common beyond their own are between the same ends, and may be better known.
        """
        every: dict[Cell, set[tuple[str, ...]]] = {}
        for (source, destination, _), hops in self.paths.items():
            every.setdefault((source, destination), set()).add(hops)
        between = {pair: {hops[1:-1] for hops in paths} for pair, paths in every.items()}
        crossed: dict[Cell, tuple[str, ...]] = {}
        for cell in cells:
            own = self.paths.get((cell[0], cell[1], int(cell[2]))) if len(cell) > 2 else None
            known = every.get(cell[:2], set())
            inner = {hops[1:-1] for hops in known}
            alike = [hops for paths in between.values() if not inner.isdisjoint(paths) for hops in paths]
            crossed[cell] = own or tuple(sorted({hop for hops in [*known, *alike] for hop in hops}))
        return crossed
