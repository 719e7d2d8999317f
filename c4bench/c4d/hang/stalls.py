"""Communication hangs: connections with unacknowledged bytes, and what they share."""

from collections.abc import Collection, Sequence

import msgspec

from c4bench.attribution.weigh import Blame, Cell, attribute_cells
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding, rank_component
from c4bench.c4d.hang.mismatch import side
from c4bench.c4d.hang.wait_for_graph import WaitForGraph
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Bools
from c4bench.c4d.observe.connections import ConnView, cell_of, progress_s
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.signs.packet_loss import nic_loss_counts, stalled_loss_finding, unanswered_packets
from c4bench.model.diagnosis import Cause, Syndrome


def stalled(
    job: JobView, clocks: HostClocks, graph: WaitForGraph, since_s: float, excluded: Collection[int]
) -> list[ConnView]:
    """Connections of stalled operations whose bytes are not acknowledged, except those of `excluded` ranks.

    Bytes that have arrived miss their acknowledgement if they come again since `since_s`, or a program that is not ours
    has looked for it; else it is the sender that does not look.
    """
    counts = nic_loss_counts(job, clocks, since_s)
    again = {nic for nic, counted in counts.items() if counted.retransmits}
    bare, stuck = job.without_operations(), [job.conns[name] for name in graph.stuck]
    return [
        view
        for view in stuck
        if job.sender(view) not in excluded
        and job.receiver(view) not in excluded
        and (_awaited(job, view, bare) or view.record.source in again)
        and (_looks(job, view, bare) or not _delivered(job, view) or unanswered_packets(_cell(view), counts))
    ]


def connections_given_up(job: JobView, graph: WaitForGraph, rank: int, end_s: float, still_s: float) -> list[ConnView]:
    """Connections of `rank` that had stood still, carrying bytes, for `still_s` when it ended (its own clock)."""
    op, bare = graph.pending.get(rank), job.without_operations()
    if op is None:
        return []
    return [
        view
        for view in job.conns.values()
        if view.record.outstanding > 0
        and job.sender(view) == rank
        and _awaited(job, view, bare)
        and max(op.entered_s, view.record.last_progress_s) < end_s - still_s
    ]


def _awaited(job: JobView, view: ConnView, bare: Bools) -> bool:
    """Whether its sender waits for what is outstanding: a program that is not ours may never learn of its completion.

    `bare` are the communicators without operations, where connections say so themselves.
    """
    return _looks(job, view, bare) or not bare[job.comms[view.record.comm].number]


def _looks(job: JobView, view: ConnView, bare: Bools) -> bool:
    """Whether its sender's program, which is not ours, has looked in vain for the completion of what is outstanding."""
    return view.record.owed > 0 and bool(bare[job.comms[view.record.comm].number])


def unanswered(job: JobView) -> list[ConnView]:
    """Connections with bytes in flight whose senders reported that nothing was acknowledged."""
    views = (view for view in job.conns.values() if view.record.outstanding)
    return [view for view in views if (job.sender(view), job.receiver(view)) in job.unanswered]


def unanswered_credit(job: JobView, graph: WaitForGraph) -> list[ConnView]:
    """Connections whose receivers granted credit and reported that it was not acknowledged.

    They mean the operation they are inside; if they have bytes in flight to the same peer, they mean those.
    """
    under_way = {(job.sender(view), job.receiver(view)) for view in job.conns.values() if view.record.outstanding}
    refused = job.unanswered - under_way
    return [
        view
        for view in job.conns.values()
        if view.record.messages
        and (job.receiver(view), job.sender(view)) in refused
        and ((op := graph.pending.get(job.receiver(view))) is None or op.comm == view.record.comm)
    ]


def waiting_for_credit(
    job: JobView, clocks: HostClocks, graph: WaitForGraph, since_s: float, excluded: Collection[int]
) -> list[ConnView]:
    """Connections that wait for credit that their waiting receivers granted, except those of `excluded` ranks.

    Inferred from receivers' retransmissions since `since_s` with no data in flight from there.
    """
    again = {nic for nic, counts in nic_loss_counts(job, clocks, since_s).items() if counts.retransmits}
    if not again:
        return []
    views = list(job.conns.values())
    again -= {view.record.source for view in views if view.record.outstanding}
    waiting = [v for v in views if v.record.state == "credit" and not v.record.outstanding]
    return [
        view
        for view in waiting
        if view.record.destination in again
        and not {job.sender(view), job.receiver(view)}.intersection(excluded)
        and (op := graph.pending.get(job.receiver(view))) is not None
        and op.comm == view.record.comm
        and view.record.rank in op.awaits
    ]


def _delivered(job: JobView, view: ConnView) -> bool:
    """Whether everything posted has arrived."""
    arrived = job.arrivals.messages(view.record)
    return arrived is not None and arrived >= view.record.messages + view.record.outstanding


def network_finding(
    job: JobView,
    clocks: HostClocks,
    graph: WaitForGraph,
    stuck: Sequence[ConnView],
    since_s: float,
    credit: Sequence[ConnView] = (),
) -> list[Finding]:
    """The paths, NICs or links that stuck connections share, given those that worked after these had stopped.

    `credit` are connections whose receivers granted credit that was not used. Where packets still arrive, the network
    is not dead: it loses some packets, or only those of the way back.
    """
    if stuck and (lost := stalled_loss_finding(job, clocks, stuck, since_s)):
        return lost
    counts = nic_loss_counts(job, clocks, since_s)
    again = [view for view in stuck if unanswered_packets(_cell(view), counts)]
    unseen = [view for view in stuck if view not in again and _delivered(job, view)]
    arriving = [*again, *unseen]
    dead = {_cell(view): view for view in stuck if view not in arriving}
    came = (view for view in credit if view.record.state != "credit")
    returned = [view for view in came if unanswered_packets(_return_cell(view), counts)]
    # Where credit arrived, its acknowledgements are missing, and those take the connection's own path.
    granted = {_cell(view) if view in returned else _return_cell(view): view for view in credit}
    cells = granted | (dead or {_return_cell(view): view for view in arriving})
    working = _working(job, clocks, stuck, arriving) if dead else set()
    excess = dict.fromkeys(working, 0.0) | dict.fromkeys(cells, 1.0)
    links = job.links() | job.crossable(cells)
    blames = attribute_cells(excess, links)
    shared = [blame for blame in blames if blame.component.kind != "path"] if dead else []
    # Acknowledgements return by another path, which is not planned: other stalled connections may miss only those.
    found = [_finding(job, graph, blame, [cells[cell] for cell in blame.cells], since_s) for blame in shared or blames]
    return [or_senders(job, each, unseen) for each in found] if unseen and not dead else found


def or_senders(job: JobView, finding: Finding, views: Collection[ConnView]) -> Finding:
    """The finding with the ranks that send by connections and may not look at what has completed."""
    ranks = (rank_component(job.job, rank) for rank in sorted(map(job.sender, views)))
    others = tuple(dict.fromkeys((*finding.alternatives, *ranks)))
    sure = finding.confidence * (1 + len(finding.alternatives)) / (1 + len(others))
    return msgspec.structs.replace(finding, alternatives=others, confidence=sure)


def _working(job: JobView, clocks: HostClocks, stuck: Sequence[ConnView], arriving: Sequence[ConnView]) -> set[Cell]:
    """The cells that carried something after all stalled connections had stopped."""
    stopped_s = max(_posted_s(clocks, view) for view in stuck if view not in arriving)
    moved = (view for view in job.conns.values() if progress_s(clocks, view) > stopped_s + clocks.cadence_s())
    return {_cell(view) for view in moved if view not in arriving}


def _cell(view: ConnView) -> Cell:
    return cell_of(view.record)


def _return_cell(view: ConnView) -> Cell:
    """The cell of what a connection's receiver sends back, by any path."""
    return (view.record.destination, view.record.source)


def _finding(job: JobView, graph: WaitForGraph, blame: Blame, own: Sequence[ConnView], since_s: float) -> Finding:
    outstanding = sum(view.record.outstanding for view in own)
    unused = sum(not view.record.outstanding for view in own)
    evidence = [f"{outstanding} messages unacknowledged on {len(own) - unused} connections"] if outstanding else []
    if unused:
        evidence.append(f"granted credits unused on {unused} connections")
    if blame.alternatives:
        evidence.append("could equally be " + " or ".join(map(str, blame.alternatives)))
    waiting = {job.sender(view): graph.pending.get(job.sender(view)) for view in own}
    return Finding(
        Syndrome.COMMUNICATION_HANG,
        Cause.CONNECTION_STALLED,
        blame.component,
        since_s,
        confidence(share=blame.posterior.share),
        tuple(evidence),
        f"a probe that crosses {blame.component}",
        {"outstanding_messages": float(outstanding), "connections": float(len(own))},
        blame.alternatives,
        tuple(side(op, (rank,)) for rank, op in waiting.items() if op is not None),
        posterior=blame.posterior,
    )


def _posted_s(clocks: HostClocks, view: ConnView) -> float:
    """When the stalled messages were posted, at the latest: what others moved before proves nothing."""
    since_s = view.record.state_since_s if view.record.state == "transfer" else 0.0
    return max(view.record.last_progress_s, since_s) + clocks.offset_s(view.host)
