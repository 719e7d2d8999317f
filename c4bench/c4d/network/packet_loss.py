"""Packets lost or overtaken on the way, as NICs count them: which component loses them.

A lost or late packet shows at both ends of a way: the sender sends again, and packets come to the receiver too early.
The counters are the NICs', whatever the way, so a cell is only suspected when both of its ends count; and it only
matters if its transfers also take longer than they did.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from c4bench.c4d.columns import Ints
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.ingest.clocks import HostClocks
from c4bench.c4d.ingest.connections import ConnView, cell_of, progress_s
from c4bench.c4d.ingest.job_view import JobView
from c4bench.c4d.ingest.nic_counters import Counts
from c4bench.c4d.localise import Blame, Cell, Links, localise
from c4bench.c4d.network.cell_index import CellValues
from c4bench.c4d.network.thresholds import NAME_SPANS, SLIGHT
from c4bench.c4d.thresholds import CHANCE
from c4bench.chance import binomial_tail
from c4bench.model.diagnosis import Cause, Syndrome

_RECENT_SPANS = 8
# What waits for lost packets is slower by times; by so much of that, any way may be by what it meets.
_HARDLY = 0.1
_NONE = Counts()


class PacketLoss(msgspec.Struct, frozen=True):
    """A component that loses packets since `onset_s`; `early` packets came too early where it matters.

    Where none did, it loses acknowledgements.
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
        """How many NICs at either end of these ways have counted something, of how many."""
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
    """Follows a job's cells span by span; how often healthy NICs count something is learnt from what is long past."""

    def __init__(self) -> None:
        self._recent: deque[_Span] = deque()
        self._past_counted = self._past = 0
        # The links that were found to lose packets, as long as ways do that cross them.
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
        """Take in how far cells depart in a span, and healthy ones at most, and what NICs have counted in it.

        Of the `current` cells, in use, those may lose so much that nothing arrives in a span that could be measured:
        they depart at least as far as what is under way has been `waiting`.
        Each end has windows of its own: what one counts now the other may have counted in the span before.
        """
        before = self._recent[-1].counts if self._recent else {}
        lately = _together(before, counts)
        sending = [cell for cell in current if cell[0] in lately]
        lossy = frozenset(cell for cell in sending if _lost(cell, lately) > _lost(cell, before))
        unanswered = frozenset(
            cell for cell in sending if unanswered_packets(cell, lately) > unanswered_packets(cell, before)
        )
        stuck = {cell: waiting[cell] for cell in lossy & waiting.keys()}
        if stuck:
            departures = departures.index.values_of({**departures, **stuck})
        self._recent.append(_Span(departures, usual, counts, opened_s, lossy, unanswered))
        if len(self._recent) > _RECENT_SPANS:
            counted, nics = (past := self._recent.popleft()).witnesses(past.departures.rows)
            self._past_counted += counted
            self._past += nics

    def unanswered(self) -> frozenset[Cell]:
        """The cells that may have lost acknowledgements in the newest span, where nothing else may be lost."""
        newest = self._recent[-1]
        return frozenset() if any(span.lossy for span in self._recent) else newest.unanswered

    def concerned(self) -> set[Cell]:
        """The cells that may be slow because they lost data or acknowledgements: what else is said of them can wait."""
        counted = [span.lossy | span.unanswered for span in self._recent]
        return {cell for cell in set().union(*counted) if not self._slow_without(cell, counted)}

    def _slow_without(self, cell: Cell, counted: Sequence[Collection[Cell]]) -> bool:
        """Whether a cell has since been slow more often without having lost anything: that is not what slows it."""
        lost = [cell in cells for cells in counted]
        first = lost.index(True)
        slow = [span.departures.get(cell, 0.0) > max(span.usual, SLIGHT) for span in self._recent]
        without = sum(was_slow and not had_lost for was_slow, had_lost in zip(slow[first:], lost[first:], strict=True))
        return without > sum(lost)

    def find(self, current: Iterable[Cell], suspect_links: Callable[[Iterable[Cell]], Links]) -> list[PacketLoss]:
        """The components that lose packets, more than by chance; `current` are the cells in use.

        `suspect` says which links they cross, given the cells that may have lost some, as `JobView.suspect_links` does.
        A link is found once, and explains whatever crosses it, or may for all that is known, until that loses no more.
        """
        lossy = set().union(*(span.lossy for span in self._recent))
        links = suspect_links(lossy)
        self._guilty.intersection_update(hop for cell in lossy for hop in links.get(cell, ()))
        if not lossy:
            return []
        excess = {cell: self._slowed(cell) if cell in lossy else 0.0 for cell in current}
        # Acknowledgements come back another way, which nobody has planned; and NICs of what is hardly slower may have
        # counted on other ways, so that it is neither well nor ill; nor is what waits for others since something loses
        # packets. Of such ways nothing is said.
        hardly = max(SLIGHT, _HARDLY * max(excess.values(), default=0.0))
        silent = (self.concerned() - lossy) | {cell for cell in lossy & excess.keys() if excess[cell] <= hardly}
        silent |= excess.keys() - lossy - self._carried()
        explained = {cell for cell in excess if self._explained(links.get(cell, ()))}
        lead = max((excess[cell] for cell in explained), default=0.0)
        excess = {cell: slowed for cell, slowed in excess.items() if cell not in silent | explained}
        blames = _beside(_explaining(localise(excess, SLIGHT, links, lead), lossy), lossy)
        found = [loss for loss in map(self._loss, blames) if loss]
        sure = [loss.blame for loss in found if loss.blame.component.kind == "link"]
        self._guilty.update(one.name for blame in sure for one in (blame.component, *blame.alternatives))
        return found

    def _carried(self) -> set[Cell]:
        """The cells that have carried something since the span in which something began to lose packets."""
        first = next(place for place, span in enumerate(self._recent) if span.lossy)
        return set().union(*(span.departures for span in list(self._recent)[first + 1 :]))

    def _explained(self, crossed: Collection[str]) -> bool:
        return bool(self._guilty) and (not crossed or not self._guilty.isdisjoint(crossed))

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
        """The chance that healthy NICs at the ends of these count as often as they did in the recent spans."""
        share = (self._past_counted + 1) / (self._past + 2)
        heard = [span.witnesses(span.departures.index.rows(cells)) for span in self._recent]
        counted, total = sum(count for count, _ in heard), sum(nics for _, nics in heard)
        return binomial_tail(counted, total, share)


def _together(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, Counts]:
    """What NICs have counted in two spans."""
    pairs = ((nic, before.get(nic, _NONE), now.get(nic, _NONE)) for nic in before.keys() | now.keys())
    return {nic: Counts(*map(sum, zip(then, since, strict=True))) for nic, then, since in pairs}


def stalled_loss_finding(job: JobView, clocks: HostClocks, stuck: Iterable[ConnView], since_s: float) -> list[Finding]:
    """What loses packets, where connections stand still since `since_s` though some of their packets still arrive.

    Ways that have carried nothing since then are neither well nor ill. Counts do not tell which of several ways between
    two NICs has lost packets: these are judged as one, which crosses what any of them does.
    """
    counts = nic_loss_counts(job, clocks, since_s)
    if not counts or not all(_lost(cell_of(view.record), counts) for view in stuck):
        return []
    carrying = (view for view in job.conns.values() if view.record.outstanding or progress_s(clocks, view) > since_s)
    cells = {cell_of(view.record) for view in carrying}
    links = job.suspect_links(cell for cell in cells if _lost(cell, counts))
    early = sum(count.out_of_sequence for count in counts.values())
    pairs = {cell[:2]: _lost(cell, counts) for cell in cells}
    known = {pair: most for pair, most in pairs.items() if most or not unanswered_packets(pair, counts)}
    lossy = {pair for pair, most in known.items() if most}
    whole = [blame for blame in localise(known, links=_links_of_pairs(cells, links)) if lossy <= set(blame.cells)]
    # Where no one component explains all that was counted, only what stands still is sure: others may have been lucky.
    blames = whole or localise({cell_of(view.record): 1.0 for view in stuck}, links=links)
    return [loss_finding(PacketLoss(blame, since_s, early)) for blame in blames]


def _links_of_pairs(cells: Iterable[Cell], links: Links) -> dict[Cell, set[str]]:
    """The links that any of the cells between the same two NICs crosses, by these."""
    found: dict[Cell, set[str]] = {}
    for cell in cells:
        found.setdefault(cell[:2], set()).update(links.get(cell, ()))
    return found


def _explaining(blames: list[Blame], lossy: Collection[Cell]) -> list[Blame]:
    """Without a single path, unless it ends wherever packets came too early: others are then counted as its own."""
    ends = {cell[1] for cell in lossy}
    return [
        blame
        for blame in blames
        if blame.component.kind != "path" or blame.alternatives or ends == {cell[1] for cell in blame.cells}
    ]


def _beside(blames: list[Blame], lossy: Collection[Cell]) -> list[Blame]:
    """Without NICs whose ways all are between NICs that exchange packets with one that loses most.

    NICs count for all of their ways together: both ends have sent again, or got too early, what was lost elsewhere.
    """
    nics = [blame for blame in blames if blame.component.kind == "nic"]
    if not nics:
        return blames
    worst = max(nics, key=lambda blame: len(blame.cells))
    name = worst.component.name
    partners = {nic for cell in lossy if name in cell[:2] for nic in cell[:2]}
    return [
        blame for blame in blames if blame not in nics or blame is worst or not partners.issuperset(_ends(blame.cells))
    ]


def _ends(cells: Iterable[Cell]) -> set[str]:
    return {nic for cell in cells for nic in cell[:2]}


def loss_finding(loss: PacketLoss) -> Finding:
    """The verdict on a component that loses packets or lets them overtake one another."""
    blame = loss.blame
    early = f"{loss.early} packets came too early and were sent again, on {len(blame.cells)} ways that cross it"
    evidence = [early if loss.early else "packets were sent again that had arrived, and ways are slower by that"]
    if blame.alternatives:
        evidence.append("this traffic cannot tell it from " + " or ".join(map(str, blame.alternatives)))
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.PACKETS_LOST,
        blame.component,
        loss.onset_s,
        0.5 if blame.alternatives else 0.9,
        tuple(evidence),
        f"a probe across {blame.component} that loses nothing",
        {"packets_early": float(loss.early)},
        blame.alternatives,
    )


def nic_loss_counts(job: JobView, clocks: HostClocks, since_s: float) -> dict[str, Counts]:
    """What the NICs that counted anything since `since_s` (master's clock) have counted."""
    restless = (
        (nic, view, since_s - clocks.offset_s(view.host))
        for nic, view in job.devices.items()
        if view.grew_s is not None
    )
    return {
        nic: view.grown(from_s) for nic, view, from_s in restless if view.grew_s is not None and view.grew_s > from_s
    }


def _lost(cell: Cell, counts: Mapping[str, Counts]) -> float:
    """How many losses of data a cell can have had at most, by what its ends have counted."""
    return float(min(counts.get(cell[0], _NONE).retransmits, counts.get(cell[1], _NONE).out_of_sequence))


def unanswered_packets(cell: Cell, counts: Mapping[str, Counts]) -> float:
    """How many packets a cell can have sent again, at most, although they had arrived."""
    return float(min(counts.get(cell[0], _NONE).retransmits, counts.get(cell[1], _NONE).duplicates))
