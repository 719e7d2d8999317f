"""Ranks that hang inside an operation that all have entered, although the network has delivered."""

from c4bench.c4d.hang.wait_for_graph import WaitForGraph, least_progress
from c4bench.c4d.ingest.job_view import JobView


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
