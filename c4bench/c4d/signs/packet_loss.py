"""Packet loss and reordering, as NICs count them: which component loses packets.

A lost or late packet shows at both ends of a path: the sender retransmits, the receiver gets packets out of sequence.
Counters are per NIC, so a cell is only suspected when both ends count, and its transfers take longer than they did.

Acknowledgements that are lost now and then: the cause lies on the return path. The sender waits, then retransmits what
has arrived. In between the path is healthy, so spans without loss clear nothing.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from c4bench.attribution.weigh import CHANCE, HARDLY, Blame, Cell, Links, attribute_cells
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.observe.cell_index import CellValues
from c4bench.c4d.observe.clocks import HostClocks
from c4bench.c4d.observe.columns import Ints
from c4bench.c4d.observe.connections import ConnView, cell_of, progress_s
from c4bench.c4d.observe.job_view import JobView
from c4bench.c4d.observe.nic_counters import Counts
from c4bench.c4d.thresholds import NAME_SPANS, RECENT_SPANS, SLIGHT
from c4bench.chance import binomial_tail
from c4bench.model.diagnosis import Cause, Component, Syndrome

NO_COUNTS = Counts()


def nic_loss_counts(job: JobView, clocks: HostClocks, since_s: float) -> dict[str, Counts]:
    """The counts of the NICs that counted anything since `since_s` (s, master's clock)."""
    restless = (
        (nic, view, since_s - clocks.offset_s(view.host))
        for nic, view in job.devices.items()
        if view.grew_s is not None
    )
    return {
        nic: view.grown(from_s) for nic, view, from_s in restless if view.grew_s is not None and view.grew_s > from_s
    }


def lost_packets(cell: Cell, counts: Mapping[str, Counts]) -> float:
    """The most data packets that a cell can have lost, by the counts of its ends."""
    return float(min(counts.get(cell[0], NO_COUNTS).retransmits, counts.get(cell[1], NO_COUNTS).out_of_sequence))


def unanswered_packets(cell: Cell, counts: Mapping[str, Counts]) -> float:
    """The most packets that a cell can have retransmitted although they had arrived."""
    return float(min(counts.get(cell[0], NO_COUNTS).retransmits, counts.get(cell[1], NO_COUNTS).duplicates))


class PacketLoss(msgspec.Struct, frozen=True):
    """A component that loses packets since `onset_s`; `early` packets arrived out of sequence behind it.

    If none did, it loses acknowledgements.
    """

    blame: Blame
    onset_s: float
    early: int


class _Span(msgspec.Struct, frozen=True):
    departures: CellValues
    usual: float
    counts: Mapping[str, Counts]
    opened_s: float
    lossy: frozenset[Cell]
    unanswered: frozenset[Cell]

    def witnesses(self, rows: Ints) -> tuple[int, int]:
        """How many NICs at either end of these cells have counted something, and of how many."""
        index = self.departures.index
        sides = index.sides(rows)
        met = [
            (sides[:, index.nic_numbers[nic]], self.counts[nic])
            for nic in index.nic_numbers.keys() & self.counts.keys()
        ]
        sent_again = sum(bool(from_it) and count.retransmits > 0 for (from_it, _), count in met)
        early = sum(bool(to_it) and count.out_of_sequence > 0 for (_, to_it), count in met)
        return sent_again + early, int(sides.sum())


class PacketLossDetector:
    """Follows a job's cells span by span; how often healthy NICs count something is learnt from older spans."""

    def __init__(self) -> None:
        self._recent: deque[_Span] = deque()
        self._past_counted = self._past = 0
        # Links found to lose packets, as long as cells that cross them do.
        self._guilty: set[str] = set()

    def add(
        self,
        departures: CellValues,
        usual: float,
        counts: Mapping[str, Counts],
        opened_s: float,
        current: Collection[Cell],
        waiting: Mapping[Cell, float] = {},
    ) -> None:
        """Add a span: departures (log ratios), the `usual` maximum of healthy cells, and what NICs have counted.

        A cell in use (`current`) may lose so much that a span measures nothing of it: it departs at least as far as its
        transfers in flight have been `waiting`.
        The two ends have different windows: what one counts now, the other may have counted in the span before.
        """
        before = self._recent[-1].counts if self._recent else {}
        lately = _together(before, counts)
        sending = [cell for cell in current if cell[0] in lately]
        lossy = frozenset(cell for cell in sending if lost_packets(cell, lately) > lost_packets(cell, before))
        unanswered = frozenset(
            cell for cell in sending if unanswered_packets(cell, lately) > unanswered_packets(cell, before)
        )
        stuck = {cell: waiting[cell] for cell in lossy & waiting.keys()}
        if stuck:
            departures = departures.index.values_of({**departures, **stuck})
        self._recent.append(_Span(departures, usual, counts, opened_s, lossy, unanswered))
        if len(self._recent) > RECENT_SPANS:
            counted, nics = (past := self._recent.popleft()).witnesses(past.departures.rows)
            self._past_counted += counted
            self._past += nics

    def concerned(self) -> set[Cell]:
        """The cells that may be slow because they lost data or acknowledgements; no other cause is named for them."""
        counted = [span.lossy | span.unanswered for span in self._recent]
        return {cell for cell in set().union(*counted) if not self._slow_without(cell, counted)}

    def _slow_without(self, cell: Cell, counted: Sequence[Collection[Cell]]) -> bool:
        """Whether a cell has since been slow more often without loss than it lost: then loss is not the cause."""
        lost = [cell in cells for cells in counted]
        first = lost.index(True)
        slow = [span.departures.get(cell, 0.0) > max(span.usual, SLIGHT) for span in self._recent]
        without = sum(was_slow and not had_lost for was_slow, had_lost in zip(slow[first:], lost[first:], strict=True))
        return without > sum(lost)

    def find(self, current: Iterable[Cell], suspect_links: Callable[[Iterable[Cell]], Links]) -> list[PacketLoss]:
        """The components that lose packets, more than by chance; `current` are the cells in use.

        `suspect_links`: see `JobView.suspect_links`; it is given the cells that may have lost packets.
        A link is found once, and explains whatever crosses it, or may for all that is known, until that loses no more.
        So it does what NICs count at the ends of what crosses it: their counts say nothing about their other cells.
        """
        lossy = set().union(*(span.lossy for span in self._recent))
        links = suspect_links(lossy)
        self._guilty.intersection_update(hop for cell in lossy for hop in links.get(cell, ()))
        if not lossy:
            return []
        excess = {cell: self._slowed(cell) if cell in lossy else 0.0 for cell in current}
        # Leave out cells of which nothing is known: acknowledgements return by unplanned paths, NICs of cells that are
        # hardly slower may have counted for other paths, and cells that carry nothing since then wait for others.
        hardly = max(SLIGHT, HARDLY * max(excess.values(), default=0.0))
        silent = (self.concerned() - lossy) | {cell for cell in lossy & excess.keys() if excess[cell] <= hardly}
        silent |= excess.keys() - lossy - self._carried()
        crossed = {cell: links.get(cell, ()) for cell in excess} if self._guilty else {}
        explained = {cell for cell, hops in crossed.items() if not hops or not self._guilty.isdisjoint(hops)}
        lead = max((excess[cell] for cell in explained), default=0.0)
        silent |= _counted_for({cell for cell in lossy if not self._guilty.isdisjoint(links.get(cell, ()))}, lossy)
        excess = {cell: slowed for cell, slowed in excess.items() if cell not in silent | explained}
        blames = attribute_cells(excess, links, above=SLIGHT, lead=lead)
        losses = [loss for loss in map(self._loss, blames) if loss]
        for loss in losses:
            self.note_named(loss.blame.suspects, Cause.PACKETS_LOST)
        return losses

    def note_named(self, suspects: Sequence[Component], cause: Cause | None) -> None:
        """Note what has been named, here or after probes, the likeliest suspect first: a link that loses packets."""
        if cause is Cause.PACKETS_LOST and suspects[0].kind == "link":
            self._guilty.update(one.name for one in suspects if one.kind == "link")

    def _carried(self) -> set[Cell]:
        """The cells that have carried something since the span in which losses began."""
        first = next(place for place, span in enumerate(self._recent) if span.lossy)
        return set().union(*(span.departures for span in list(self._recent)[first + 1 :]))

    def _slowed(self, cell: Cell) -> float:
        spans = [span for span in self._recent if cell in span.lossy and cell in span.departures]
        return sum(span.departures[cell] - span.usual for span in spans) / max(1, len(spans))

    def _loss(self, blame: Blame) -> PacketLoss | None:
        spans = [span for span in self._recent if not span.lossy.isdisjoint(blame.cells)]
        if len(spans) < NAME_SPANS or self._chance(blame.cells) >= CHANCE:
            return None
        ends = {cell[1] for cell in blame.cells}
        early = sum(span.counts[nic].out_of_sequence for span in spans for nic in ends & span.counts.keys())
        return PacketLoss(blame, spans[0].opened_s, early)

    def _chance(self, cells: Collection[Cell]) -> float:
        """The chance that healthy NICs at the ends of these cells count as often as in the recent spans."""
        share = (self._past_counted + 1) / (self._past + 2)
        heard = [span.witnesses(span.departures.index.rows(cells)) for span in self._recent]
        counted, total = sum(count for count, _ in heard), sum(nics for _, nics in heard)
        return binomial_tail(counted, total, share)


def _together(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, Counts]:
    """The NICs' counts of two spans together."""
    nics = before.keys() | now.keys()
    return {
        nic: Counts(*map(sum, zip(before.get(nic, NO_COUNTS), now.get(nic, NO_COUNTS), strict=True))) for nic in nics
    }


def stalled_loss_finding(job: JobView, clocks: HostClocks, stuck: Iterable[ConnView], since_s: float) -> list[Finding]:
    """Findings on what loses packets, where connections stand still since `since_s` though some packets still arrive.

    Nothing is known of paths that have carried nothing since then. Counts do not show which of several paths between
    two NICs has lost packets: these count as one, which crosses all their links.
    """
    counts = nic_loss_counts(job, clocks, since_s)
    if not counts or not all(lost_packets(cell_of(view.record), counts) for view in stuck):
        return []
    carrying = (view for view in job.conns.values() if view.record.outstanding or progress_s(clocks, view) > since_s)
    cells = {cell_of(view.record) for view in carrying}
    links = job.suspect_links(cell for cell in cells if lost_packets(cell, counts))
    early = sum(count.out_of_sequence for count in counts.values())
    pairs = {cell[:2]: lost_packets(cell, counts) for cell in cells}
    known = {pair: most for pair, most in pairs.items() if most or not unanswered_packets(pair, counts)}
    lossy = {pair for pair, most in known.items() if most}
    whole = [
        blame for blame in attribute_cells(known, links=_links_of_pairs(cells, links)) if lossy <= set(blame.cells)
    ]
    # If no single component explains all counts, only the stalled connections are sure.
    blames = whole or attribute_cells({cell_of(view.record): 1.0 for view in stuck}, links=links)
    return [loss_finding(PacketLoss(blame, since_s, early)) for blame in blames]


def _links_of_pairs(cells: Iterable[Cell], links: Links) -> dict[Cell, set[str]]:
    """The links that any of the cells between the same two NICs crosses, by these."""
    of_pairs: dict[Cell, set[str]] = {}
    for cell in cells:
        of_pairs.setdefault(cell[:2], set()).update(links.get(cell, ()))
    return of_pairs


def _counted_for(known: Collection[Cell], lossy: Collection[Cell]) -> set[Cell]:
    """The lossy cells of which one end also counts for a cell that is `known` to lose packets."""
    sources, destinations = {cell[0] for cell in known}, {cell[1] for cell in known}
    return {cell for cell in lossy if cell[0] in sources or cell[1] in destinations}


def loss_finding(loss: PacketLoss) -> Finding:
    """The finding on a component that loses or reorders packets.

    A path alone is hardly ever to blame: what it crosses is suspected as well, though other traffic there is well.
    """
    posterior, others = loss.blame.posterior, loss.blame.alternatives
    sure = confidence(share=posterior.share)
    if loss.blame.component.kind == "path":
        crossed = [row.component for row in posterior.dropped if not row.flows.isdisjoint(posterior.flows)]
        others += tuple(part for part in crossed if part.kind != "nic" or part.side)
        sure = confidence(len(others))
    early = f"{loss.early} packets came too early and were sent again, on {len(loss.blame.cells)} paths that cross it"
    evidence = [early if loss.early else "packets were sent again that had arrived, and paths are slower by that"]
    if others:
        evidence.append("this traffic cannot tell it from " + " or ".join(map(str, others)))
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.PACKETS_LOST,
        loss.blame.component,
        loss.onset_s,
        sure,
        tuple(evidence),
        f"a probe across {loss.blame.component} that loses nothing",
        {"packets_early": float(loss.early)},
        others,
        posterior=posterior,
    )
