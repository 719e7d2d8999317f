"""Hangs: an operation stands still because a rank does not take part, or because the network does not deliver."""

import msgspec

from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.mismatch import mismatch_finding, side
from c4bench.c4d.hang.port_failures import port_findings, ports_down, silent_host_finding, silent_hosts
from c4bench.c4d.hang.stalls import network_finding, stalled, waiting_for_credit
from c4bench.c4d.hang.wait_for_graph import WaitForGraph, least_progress, wait_graph
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import NEVER
from c4bench.c4d.observe.job_view import CommView, JobView
from c4bench.model.diagnosis import Cause, Component, OperationSide, Syndrome


class Standstill(msgspec.Struct, frozen=True):
    """A communicator in whose running operation nothing has happened since `since_s`, seen until `observed_s`."""

    comm: str
    since_s: float
    observed_s: float


def standstills(job: JobView, clocks: HostClocks, at_least_s: float) -> list[Standstill]:
    """Communicators with a rank inside an operation and no progress of any member for `at_least_s`, oldest first.

    Counted up to the latest window of the waiting ranks, not up to now: without telemetry nothing is known.
    """
    moved_s = job.progress_s(clocks)
    if not (quiet := clocks.latest_heard_s() - moved_s >= at_least_s).any():
        return []
    candidates = [
        Standstill(name, float(moved_s[comm.number]), _observed_s(comm, clocks))
        for name, comm in job.comms.items()
        if quiet[comm.number]
    ]
    return sorted((s for s in candidates if s.observed_s - s.since_s >= at_least_s), key=lambda s: (s.since_s, s.comm))


def _observed_s(comm: CommView, clocks: HostClocks) -> float:
    """The latest window (s, master's clock) of members inside an operation; minus infinity if there are none."""
    inside = (comm.hosts[member] for member in comm.hosts if comm.uncompleted(member) is not None)
    return max(map(clocks.last_heard_s, inside), default=NEVER)


def hang_findings(job: JobView, clocks: HostClocks, stills: list[Standstill]) -> list[Finding]:
    """Find the causes of standstills; empty while the awaited ranks still move.

    A bug of the job explains everything. Next come stopped processes, silent hosts and ports that are down; and
    besides, stalled connections between other ranks. Running ranks are suspected only if none of these is found.
    """
    case = _Case(job, clocks, stills)
    bug = mismatch_finding(job.job, case.graph, job.records_of, case.since_s)
    if bug:
        return [bug]
    down = case.halted() + case.silent() + port_findings(job, clocks, case.fallen)
    return [*down, *case.network(), *case.absent_ranks()] or case.inside()


def secondary_findings(job: JobView, clocks: HostClocks, stills: list[Standstill]) -> list[Finding]:
    """Causes besides processes that ended: stopped processes, and stalled connections between running ranks."""
    if not stills:
        return []
    case = _Case(job, clocks, stills)
    return [verdict for verdict in case.halted() if verdict.cause is Cause.PROCESS_STOPPED] + case.network()


class _Case:
    """A job that stands still, at one moment."""

    def __init__(self, job: JobView, clocks: HostClocks, stills: list[Standstill]) -> None:
        self.job, self.clocks = job, clocks
        self.graph: WaitForGraph = wait_graph(job)
        self.since_s, self.observed_s = stills[0].since_s, max(still.observed_s for still in stills)
        self.still = {still.comm for still in stills}
        self.silent_hosts = self._silent_hosts()
        self.fallen = ports_down(job, clocks)
        self.absent = [rank for rank in self.graph.absent() if not self._moving(rank)]

    def _moving(self, rank: int) -> bool:
        """Whether a rank acted well after the standstill began: it works in another communicator."""
        acted_s = self.job.members.acted_s(rank) + self.clocks.offset_s(self.job.mapping.host(rank))
        return acted_s > self.since_s + (self.observed_s - self.since_s) / 2

    def _down(self) -> set[int]:
        return {rank for rank in self.job.process if process_stopped(self.job, rank)}

    def halted(self) -> list[Finding]:
        """Ranks whose process does not run, whether they wait or are awaited."""
        return [self._halted(rank) for rank in sorted(self._down()) if self._matters(rank)]

    def _matters(self, rank: int) -> bool:
        """Whether any rank waits for this one: a process that ended after its last operation blocks nobody."""
        if rank in self.graph.pending:
            return True
        return any(rank in targets for targets in set(self.graph.edges.values()))

    def _halted(self, rank: int) -> Finding:
        state = self.job.process[rank].state
        cause = Cause.PROCESS_STOPPED if state == "stopped" else Cause.PROCESS_ENDED
        evidence = (*self._standing(rank), f"its process is {state}")
        return self._rank(rank, cause, 0, evidence)

    def _standing(self, rank: int) -> tuple[str, ...]:
        if rank in self.graph.pending:
            op = self.graph.pending[rank]
            return (f"rank {rank} is inside {op.kind} #{op.seq} of {op.comm} and does not even wait",)
        waiting = self.graph.waiting_for(rank)
        return (f"rank {rank} has not entered the operation in which {waiting} ranks wait",)

    def silent(self) -> list[Finding]:
        """Hosts whose agents fell silent when the standstill began, as long as they are few."""
        return [
            silent_host_finding(host, self.clocks, self.since_s, self.observed_s) for host in sorted(self.silent_hosts)
        ]

    def _silent_hosts(self) -> set[str]:
        hosts = {host for comm in self.still for host in self.job.comms[comm].hosts.values()}
        return silent_hosts(hosts, self.clocks, (self.since_s + self.observed_s) / 2)

    def _cut_off(self) -> set[int]:
        """Ranks on silent hosts, and ranks whose ports are down."""
        users = self.job.users() if self.fallen else {}
        return self._unheard().union(*(users[nic] for nic in self.fallen))

    def _unheard(self) -> set[int]:
        """All ranks on silent hosts."""
        return {
            rank
            for comm in self.job.comms.values()
            for member, rank in comm.ranks.items()
            if comm.hosts[member] in self.silent_hosts
        }

    def network(self) -> list[Finding]:
        """Stalled connections between ranks that are up."""
        beside = {*self._down(), *self.absent, *self._cut_off()}
        stuck = stalled(self.job, self.clocks, self.graph, self.since_s, beside)
        credit = waiting_for_credit(self.job, self.clocks, self.graph, self.since_s, beside)
        if not (stuck or credit):
            return []
        return network_finding(self.job, self.clocks, self.graph, stuck, self.since_s, credit)

    def absent_ranks(self) -> list[Finding]:
        """Ranks that did not enter the operation the others wait in."""
        beside = self._cut_off()
        running = [rank for rank in self.absent if not process_stopped(self.job, rank) and rank not in beside]
        return [self._rank(rank, Cause.NOT_ENTERED, 0, self._standing(rank)) for rank in running]

    def inside(self) -> list[Finding]:
        """A rank that hangs inside an operation though its process runs."""
        for comm in fully_entered_comms(self.graph, self.job):
            if comm in self.still and (findings := self._inside(comm)):
                return findings
        return []

    def _inside(self, comm: str) -> list[Finding]:
        view = self.job.comms[comm]
        unseen = members_not_reading(self.job, comm)
        if len(unseen) == 1:
            ((member, messages),) = unseen.items()
            evidence = (f"{messages} messages have reached rank {view.ranks[member]}, which has not looked at them",)
            figures = {"unseen_messages": float(messages)}
            return [self._rank(view.ranks[member], Cause.COMPLETION_NOT_SEEN, 0, evidence, figures)]
        stuck = ranks_stuck_inside(self.job, self.graph, comm)
        if not stuck:
            return []
        evidence = (f"all are inside {comm}, nothing is under way, and this rank owes the next step",)
        others = min(1, len(stuck) - 1)
        return [self._rank(view.ranks[member], Cause.STUCK_INSIDE, others, evidence) for member in stuck]

    def _rank(
        self,
        rank: int,
        cause: Cause,
        others: int,
        evidence: tuple[str, ...],
        figures: dict[str, float] | None = None,
    ) -> Finding:
        """A finding on one rank that so many `others` are like, with the operation in which the others wait."""
        waiting = [(other, op) for other, op in self.graph.pending.items() if other != rank]
        figures = {"waiting_ranks": float(len(waiting)), "stood_still_s": self.observed_s - self.since_s} | (
            figures or {}
        )
        operations: tuple[OperationSide, ...] = ()
        if waiting:
            oldest = min((op for _, op in waiting), key=lambda op: op.entered_s)
            same = [other for other, op in waiting if (op.comm, op.seq) == (oldest.comm, oldest.seq)]
            operations = (side(oldest, same),)
        component = rank_component(self.job.job, rank) if rank >= 0 else Component("host", self.job.mapping.host(rank))
        refuted_by = f"{component} entering or finishing an operation"
        verdict = _hang(component, cause, self.since_s, others, evidence, refuted_by, figures)
        return msgspec.structs.replace(verdict, operations=operations)


def process_stopped(job: JobView, rank: int) -> bool:
    """Whether a rank's process is known and not running."""
    record = job.process.get(rank)
    return record is not None and record.state != "running"


def _hang(
    component: Component,
    cause: Cause,
    onset_s: float,
    others: int,
    evidence: tuple[str, ...],
    refuted_by: str,
    figures: dict[str, float],
) -> Finding:
    syndrome = Syndrome.NON_COMMUNICATION_HANG
    sure = confidence(others)
    return Finding(syndrome, cause, component, onset_s, sure, evidence, refuted_by, figures)


def members_not_reading(job: JobView, comm: str) -> dict[int, int]:
    """Members that have not read messages which reached their memory long ago, and how many.

    The network acknowledged them to the sender, and the receiver does not count them as arrived; or they have arrived,
    and the sender does not see the acknowledgement although other messages reach it unseen as well.
    """
    unseen: dict[int, int] = {}
    for view in job.conns.values():
        conn = view.record
        arrived = job.arrivals.messages(conn) if conn.comm == comm else None
        if arrived is not None and conn.messages > arrived:
            unseen[conn.peer] = unseen.get(conn.peer, 0) + conn.messages - arrived
    return unseen


def ranks_stuck_inside(job: JobView, graph: WaitForGraph, comm: str) -> list[int]:
    """Members of `comm` that the others inside wait for and that wait for nobody themselves.

    A sender without credit waits for its receiver. A receiver without data waits for its sender, unless that one waits
    for its credit: a receiver without data has granted credit, or hangs. A member that is still inside after all
    others have left waits for nobody.
    """
    view = job.comms[comm]
    inside = {member for member, rank in view.ranks.items() if _pending_in(graph, rank, comm)}
    edges: dict[int, set[int]] = {member: set() for member in inside}
    refused = set()
    for conn_view in job.conns.values():
        conn = conn_view.record
        if conn.comm == comm and conn.rank in inside and conn.state == "credit" and conn.outstanding == 0:
            edges[conn.rank].add(conn.peer)
            refused.add((conn.rank, conn.peer))
    for member in inside:
        op = graph.pending[view.ranks[member]]
        edges[member].update(peer for peer in op.awaits if peer in inside and (peer, member) not in refused)
    awaited = set().union(*edges.values())
    sinks = [member for member in inside if member in awaited and not edges[member]]
    if sinks or awaited:
        return sinks
    if len(inside) < len(view.hosts):
        return sorted(inside)
    least = least_progress(job, comm, view.hosts)
    return least if len(least) == 1 else []


def fully_entered_comms(graph: WaitForGraph, job: JobView) -> list[str]:
    """Communicators whose members are all inside the operation that some wait in, or have left it; oldest first."""
    oldest: dict[str, float] = {}
    for rank, op in graph.pending.items():
        if not any(isinstance(node, int) for node in graph.edges[rank]):
            oldest[op.comm] = min(op.entered_s, oldest.get(op.comm, op.entered_s))
    return sorted((comm for comm in oldest if comm in job.comms), key=lambda comm: (oldest[comm], comm))


def _pending_in(graph: WaitForGraph, rank: int, comm: str) -> bool:
    op = graph.pending.get(rank)
    return op is not None and op.comm == comm
