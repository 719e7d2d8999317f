"""Communication hangs: connections that carry bytes nobody acknowledges, and what they share."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from c4bench.c4d.clocks import HostClocks
from c4bench.c4d.connections import ConnView, cell_of
from c4bench.c4d.job_view import JobView
from c4bench.c4d.localise import Blame, Cell, localise
from c4bench.c4d.losses import counted, lost_verdict, unanswered_packets
from c4bench.c4d.mismatch import side
from c4bench.c4d.verdict import Verdict, rank_component
from c4bench.c4d.waits import Waits
from c4bench.model.diagnosis import Cause, Component, Syndrome


def stalled(job: JobView, graph: Waits, beside: Collection[int]) -> list[ConnView]:
    """Connections of operations that stand still whose bytes nobody takes, but for those `beside` the ranks given."""
    found = [job.conns[name] for name in graph.stuck]
    return [
        view
        for view in found
        if job.sender(view) not in beside and job.receiver(view) not in beside and not _delivered(job, view)
    ]


def gave_up_on(job: JobView, graph: Waits, rank: int, end_s: float, patience_s: float) -> list[ConnView]:
    """Connections of `rank` that had stood still, carrying bytes, for `patience_s` when it ended (its own clock)."""
    op = graph.pending.get(rank)
    if op is None:
        return []
    return [
        view
        for view in job.conns.values()
        if view.record.outstanding > 0
        and job.sender(view) == rank
        and max(op.entered_s, view.record.last_progress_s) < end_s - patience_s
    ]


def unanswered(job: JobView) -> list[ConnView]:
    """Connections with bytes under way whose senders gave them up for want of an acknowledgement, as they have said."""
    views = (view for view in job.conns.values() if view.record.outstanding)
    return [view for view in views if (job.sender(view), job.receiver(view)) in job.unanswered]


def credit_verdict(job: JobView, clocks: HostClocks, graph: Waits, since_s: float) -> list[Verdict]:
    """What is to blame for ranks that got no acknowledgement and had no bytes under way.

    It was credit then, which goes back over a connection's other end by any way. Where it came again and again, its
    acknowledgements are what is missing: they come by the connection's own way.
    """
    counts = counted(job, clocks, -float("inf"))
    cells: dict[Cell, ConnView] = {}
    for view in job.conns.values():
        if (job.receiver(view), job.sender(view)) in job.unanswered:
            back = view.record.destination, view.record.source
            cells[cell_of(view.record) if unanswered_packets(back, counts) else back] = view
    ways = {cell_of(view.record) for view in cells.values()}
    found = _shared(job, cells)
    return _verdicts(job, graph, [b if ways.issuperset(b.cells) else _either_side(b) for b in found], cells, since_s)


def _either_side(blame: Blame) -> Blame:
    """Credit that nobody acknowledged has not come to a NIC, or its acknowledgement has not left it."""
    whole = Component(blame.component.kind, blame.component.name)
    return msgspec.structs.replace(blame, component=whole)


def _delivered(job: JobView, view: ConnView) -> bool:
    """Whether everything posted has arrived: then it is the sender that does not look."""
    arrived = job.arrivals.messages(view.record)
    return arrived is not None and arrived >= view.record.messages + view.record.outstanding


def network_verdict(
    job: JobView, clocks: HostClocks, graph: Waits, stuck: list[ConnView], since_s: float
) -> list[Verdict]:
    """The paths or NICs that stuck connections share, given those that worked after these had stopped.

    Where packets still arrive, the network is not dead: it loses some.
    """
    if lost := lost_verdict(job, clocks, stuck, since_s):
        return lost
    counts = counted(job, clocks, since_s)
    arriving = [view for view in stuck if unanswered_packets(cell_of(view.record), counts)]
    if len(arriving) == len(stuck):
        return _unacknowledged(job, graph, stuck, since_s)
    stuck = [view for view in stuck if view not in arriving]
    excess: dict[Cell, float] = {cell_of(v.record): 1.0 for v in stuck}
    stopped_s = max(_posted_s(clocks, view) for view in stuck)
    for view in job.conns.values():
        if view not in arriving and progress_s(clocks, view) > stopped_s + clocks.cadence_s():
            excess.setdefault(cell_of(view.record), 0.0)
    blames = localise(excess, links=job.links())
    shared = [blame for blame in blames if blame.component.kind != "path"]
    # Acknowledgements come back another way, which nobody has planned: what else stands still may miss only those.
    return [
        _blamed(job, graph, blame, [view for view in stuck if cell_of(view.record) in blame.cells], since_s)
        for blame in shared or blames
    ]


def _unacknowledged(job: JobView, graph: Waits, stuck: list[ConnView], since_s: float) -> list[Verdict]:
    """What keeps acknowledgements from coming back, where receivers get the same packets again and again."""
    cells: dict[Cell, ConnView] = {(view.record.destination, view.record.source): view for view in stuck}
    return _verdicts(job, graph, _shared(job, cells), cells, since_s)


def _shared(job: JobView, cells: Mapping[Cell, ConnView]) -> list[Blame]:
    """What these cells share; without a source port they may take any way that is known between their NICs."""
    links: dict[Cell, set[str]] = {}
    for (source, destination, port), hops in job.ways.items():
        for cell in ((source, destination), (source, destination, str(port))):
            if cell in cells:
                links.setdefault(cell, set()).update(hops)
    return localise(dict.fromkeys(cells, 1.0), links={cell: sorted(hops) for cell, hops in links.items()})


def _verdicts(
    job: JobView, graph: Waits, blames: Sequence[Blame], cells: Mapping[Cell, ConnView], since_s: float
) -> list[Verdict]:
    return [_blamed(job, graph, blame, [cells[cell] for cell in blame.cells], since_s) for blame in blames]


def _blamed(job: JobView, graph: Waits, blame: Blame, own: Sequence[ConnView], since_s: float) -> Verdict:
    outstanding = sum(view.record.outstanding for view in own)
    unknown = sorted({job.sender(view) for view in own if job.sender(view) not in job.process})
    others = (*blame.alternatives, *(rank_component(job.job, rank) for rank in unknown))
    evidence = [f"{outstanding} messages unacknowledged on {len(own)} connections"]
    if others:
        evidence.append("could equally be " + " or ".join(map(str, others)))
    waiting = {job.sender(view): graph.pending.get(job.sender(view)) for view in own}
    return Verdict(
        Syndrome.COMMUNICATION_HANG,
        Cause.CONNECTION_STALLED,
        blame.component,
        since_s,
        0.6 if others else 0.9,
        tuple(evidence),
        f"a probe that crosses {blame.component}",
        {"outstanding_messages": float(outstanding), "connections": float(len(own))},
        others,
        tuple(side(op, (rank,)) for rank, op in waiting.items() if op is not None),
    )


def _posted_s(clocks: HostClocks, view: ConnView) -> float:
    """When what stands still was posted, as near as can be told: what others moved before that proves nothing."""
    since_s = view.record.state_since_s if view.record.state == "transfer" else 0.0
    return max(view.record.last_progress_s, since_s) + clocks.offset_s(view.host)


def progress_s(clocks: HostClocks, view: ConnView) -> float:
    """When a connection last had a message acknowledged, on the master's clock."""
    return view.record.last_progress_s + clocks.offset_s(view.host)
