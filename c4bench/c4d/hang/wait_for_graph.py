"""The wait-for graph over the job's ranks and connections; its sinks are what everybody waits for.

A rank inside an operation waits for the members that have not entered it; once all have entered, for the connections
of that operation that carry unacknowledged bytes. Connections of a communicator without operations, such as the queue
pairs of a program that we did not write, carry whichever operation their rank is in. A rank may be in several
operations of overlapping communicators; it waits in the first it has not completed. A node that waits for nothing while
others wait for it is the culprit.
"""

from collections.abc import Iterable, Mapping

import msgspec

from c4bench.c4d.observe.job_view import CommView, JobView
from c4bench.model.telemetry import OpRecord
from c4bench.model.window import EndName

Node = int | EndName


class WaitForGraph(msgspec.Struct, frozen=True):
    """`pending`: the first uncompleted operation of each waiting rank; `edges`: whom each node waits for.

    `stuck` are the connections that carry unacknowledged messages of those operations, awaited or not.
    """

    pending: dict[int, OpRecord]
    edges: dict[Node, frozenset[Node]]
    stuck: tuple[EndName, ...] = ()

    def sinks(self) -> list[Node]:
        """Nodes that others wait for, directly or through others, and that wait for nothing themselves."""
        awaited: set[Node] = set().union(*set(self.edges.values()))
        return sorted((node for node in awaited if not self.edges.get(node)), key=str)

    def absent(self) -> list[int]:
        """Ranks that others wait for and that are in no operation."""
        return [node for node in self.sinks() if isinstance(node, int) and node not in self.pending]

    def waiting_for(self, node: Node) -> int:
        """How many ranks wait for `node`, directly or through others."""
        reverse: dict[Node, list[Node]] = {}
        for source, targets in self.edges.items():
            for target in targets:
                reverse.setdefault(target, []).append(source)
        waiting, todo = {node}, [node]
        while todo:
            fresh = set(reverse.get(todo.pop(), ())) - waiting
            waiting |= fresh
            todo += fresh
        return sum(isinstance(other, int) for other in waiting - {node})

    def cycle(self) -> list[int]:
        """Ranks that wait for one another in a cycle, by the order of their calls; empty if there is none."""
        known: set[int] = set()
        for first in self.pending:
            walked: dict[int, None] = {}
            rank: int | None = first
            while rank is not None and rank not in walked and rank not in known:
                walked[rank] = None
                rank = self._next_rank(rank)
            if rank is not None and rank in walked:
                return list(walked)[list(walked).index(rank) :]
            known.update(walked)
        return []

    def _next_rank(self, rank: int) -> int | None:
        """One of the ranks that `rank` waits for, if all of those wait themselves."""
        targets = self.edges.get(rank, frozenset())
        waiting = [node for node in targets if isinstance(node, int) and self.edges.get(node)]
        return min(waiting) if waiting and len(waiting) == len(targets) else None


def wait_graph(job: JobView) -> WaitForGraph:
    """Who waits for whom in `job` now."""
    pending = first_uncompleted(job)
    stuck = _unacknowledged(job, pending)
    operations = {(op.comm, op.seq) for op in pending.values()}
    absent = {place: _absent(job.comms[place[0]], place[1]) for place in operations}
    edges: dict[Node, frozenset[Node]] = {}
    for rank, op in pending.items():
        edges[rank] = absent[op.comm, op.seq] or frozenset[Node](stuck.get(op.comm, frozenset()))
    return WaitForGraph(pending, edges, tuple(sorted(name for names in stuck.values() for name in names)))


def first_uncompleted(job: JobView) -> dict[int, OpRecord]:
    """The operation each waiting rank of the job entered first and has not completed."""
    pending: dict[int, OpRecord] = {}
    for comm in job.comms.values():
        for member in comm.hosts:
            op = comm.uncompleted(member)
            if op is None:
                continue
            rank = comm.ranks[member]
            if rank not in pending or op.entered_s < pending[rank].entered_s:
                pending[rank] = op
    return pending


def _absent(comm: CommView, seq: int) -> frozenset[Node]:
    return frozenset(comm.ranks[member] for member in comm.hosts if (op := comm.latest(member)) is None or op.seq < seq)


def _unacknowledged(job: JobView, pending: Mapping[int, OpRecord]) -> dict[str, frozenset[EndName]]:
    """Connections with posted, unacknowledged messages whose owner waits in an operation that they carry."""
    stuck: dict[str, set[EndName]] = {}
    bare = job.without_operations()
    for name, view in job.conns.items():
        if view.record.outstanding > 0:
            op = pending.get(job.sender(view))
            comm = view.record.comm
            if op is not None and (op.comm == comm or bare[job.comms[comm].number]):
                stuck.setdefault(op.comm, set()).add(name)
    return {comm: frozenset(names) for comm, names in stuck.items()}


def least_progress(job: JobView, comm: str, members: Iterable[int]) -> list[int]:
    """The members that have sent fewest messages in a symmetric communicator: there the standstill began.

    In a ring the last step reached is least at the rank where data stopped and rises by one from rank to rank.
    """
    sent = dict.fromkeys(members, 0)
    for view in job.conns.values():
        if view.record.comm == comm and view.record.rank in sent:
            sent[view.record.rank] += view.record.messages
    least = min(sent.values(), default=0)
    return [member for member, messages in sent.items() if messages == least]
