"""The wait-for graph over ranks and connections, and the sink everybody waits for.

A rank inside an operation waits for the members that have not entered it; once all have entered, for the connections
of that operation that carry unacknowledged bytes. A rank may be in several operations of overlapping communicators; it
waits in the first it has not completed. A node that waits for nothing while others wait for it is the culprit.
"""

from collections.abc import Iterable, Mapping

import msgspec

from c4bench.c4d.ledger import ConnKey, JobView
from c4bench.model.telemetry import OpRecord

Node = int | ConnKey


class Waits(msgspec.Struct, frozen=True):
    """`pending`: the first uncompleted operation of each waiting rank; `edges`: whom each node waits for."""

    pending: dict[int, OpRecord]
    edges: dict[Node, frozenset[Node]]

    def sinks(self) -> list[Node]:
        """Nodes that others wait for, directly or through others, and that wait for nothing themselves."""
        awaited: set[Node] = set().union(*self.edges.values())
        return sorted((node for node in awaited if not self.edges.get(node)), key=str)

    def waiting_for(self, node: Node) -> int:
        """How many ranks wait for `node`, directly or through others."""
        reverse: dict[Node, list[Node]] = {}
        for source, targets in self.edges.items():
            for target in targets:
                reverse.setdefault(target, []).append(source)
        seen, todo = {node}, [node]
        while todo:
            fresh = [source for source in reverse.get(todo.pop(), ()) if source not in seen]
            seen.update(fresh)
            todo += fresh
        return sum(isinstance(other, int) for other in seen - {node})


def wait_graph(job: JobView) -> Waits:
    """Who waits for whom in `job` now."""
    pending = first_uncompleted(job)
    stuck = _unacknowledged(job, pending)
    absent = {(op.comm, op.seq): _absent(job, op) for op in pending.values()}
    edges: dict[Node, frozenset[Node]] = {}
    for rank, op in pending.items():
        missing = absent[op.comm, op.seq]
        edges[rank] = missing or frozenset(stuck.get(op.comm, ()))
    return Waits(pending, edges)


def first_uncompleted(job: JobView) -> dict[int, OpRecord]:
    """The operation each waiting rank entered first and has not completed."""
    pending: dict[int, OpRecord] = {}
    for comm in job.comms.values():
        for rank in comm.latest:
            op = comm.uncompleted(rank)
            if op is not None and (rank not in pending or op.entered_s < pending[rank].entered_s):
                pending[rank] = op
    return pending


def _absent(job: JobView, op: OpRecord) -> frozenset[Node]:
    comm = job.comms[op.comm]
    return frozenset(rank for rank in comm.hosts if rank not in comm.latest or comm.latest[rank].seq < op.seq)


def _unacknowledged(job: JobView, pending: Mapping[int, OpRecord]) -> dict[str, list[Node]]:
    """Connections with posted, unacknowledged messages whose owner waits in an operation of their communicator."""
    stuck: dict[str, list[Node]] = {}
    for name, view in job.conns.items():
        op = pending.get(view.record.rank)
        if op is not None and op.comm == view.record.comm and view.record.outstanding > 0:
            stuck.setdefault(op.comm, []).append(name)
    return stuck


def least_progress(job: JobView, comm: str, ranks: Iterable[int]) -> list[int]:
    """The ranks that have sent fewest messages in a symmetric communicator: there the standstill began.

    In a ring the last step reached is least at the rank where data stopped and rises by one from rank to rank.
    """
    sent = dict.fromkeys(ranks, 0)
    for view in job.conns.values():
        if view.record.comm == comm and view.record.rank in sent:
            sent[view.record.rank] += view.record.messages
    least = min(sent.values(), default=0)
    return [rank for rank, messages in sent.items() if messages == least]
