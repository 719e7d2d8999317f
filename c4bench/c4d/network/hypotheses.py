"""What speaks for and against each component that may be slow or lose packets, and each benign explanation."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from heapq import nlargest

from c4bench.attribution.localise import Blame, Cell, Links
from c4bench.c4d.network.evidence import Weight
from c4bench.c4d.network.loss_counts import NO_COUNTS
from c4bench.c4d.network.span_evidence import SpanEvidence
from c4bench.c4d.network.thresholds import LEANING, SLIGHT_RATIO
from c4bench.model.benign import Benign
from c4bench.model.diagnosis import Cause, Component
from c4bench.model.fabric import MissingLink
from c4bench.model.hypothesis import Argument, Fact, Hypothesis, Standing

# So many cells are shown one by one, and so many dropped components.
_SHOWN = 3
_DROPPED = 6
_LOSSES = frozenset({Cause.PACKETS_LOST})


def crosses(component: Component, cell: Cell, links: Links) -> bool:
    """Whether what a cell carries crosses a component."""
    match component.kind:
        case "nic":
            ends = {"tx": cell[:1], "rx": cell[1:2]}.get(component.side, cell[:2])
            return component.name in ends
        case "path":
            return component.name == ">".join(cell[:2])
        case "link":
            return component.name in links.get(cell, ())
    return False


def dropped(suspects: Collection[Component], cells: Iterable[Cell], links: Links) -> list[Component]:
    """What bad `cells` cross besides the suspects, a NIC by either side; the components of most cells first."""
    counts: Counter[Component] = Counter()
    for cell in cells:
        counts.update([Component("nic", cell[0], "tx"), Component("nic", cell[1], "rx")])
        counts.update(Component("link", hop) for hop in links.get(cell, ()))
    known = {
        *suspects,
        *(Component("nic", one.name, side) for one in suspects if not one.side for side in ("tx", "rx")),
    }
    return [one for one, _ in counts.most_common() if one not in known][:_DROPPED]


def standing(place: int) -> Standing:
    """That of a finding's suspect by its place."""
    return Standing.ALTERNATIVE if place else Standing.NAMED


def component_hypotheses(
    suspects: Sequence[Component], cause: Cause | None, onset_s: float, seen: SpanEvidence
) -> list[Hypothesis]:
    """The suspects of a finding, then what was dropped though slow or lossy cells cross it."""
    argue = _Lossy(seen) if cause in _LOSSES else _Slow(seen, onset_s)
    links = seen.judged.span.links
    bad = [cell for cell in argue.bad if any(crosses(one, cell, links) for one in suspects)]
    others = dropped(suspects, bad, links)
    standings = [*map(standing, range(len(suspects))), *[Standing.DROPPED] * len(others)]
    found = []
    for one, at in zip([*suspects, *others], standings, strict=True):
        speaks_for, speaks_against = argue.about(one)
        found.append(Hypothesis(one, at, speaks_for, (*speaks_against, *elsewhere(one, bad, links))))
    return found


def elsewhere(one: Component, bad: Collection[Cell], links: Links) -> tuple[Argument, ...]:
    """How many of the bad cells do not cross a component, if any."""
    cells = sum(not crosses(one, cell, links) for cell in bad)
    return (Argument(Fact.CELLS_ELSEWHERE, figures={"cells": float(cells)}),) if cells else ()


Arguments = tuple[tuple[Argument, ...], tuple[Argument, ...]]  # for, and against


class _Slow:
    """Arguments about what makes cells slow since `onset_s`; `bad` are cells that lean towards slow."""

    def __init__(self, seen: SpanEvidence, onset_s: float) -> None:
        self._seen, self._onset_s = seen, onset_s
        self._links = seen.judged.span.links
        weights = seen.judged.weights.cells
        leaning = {cell: weight for cell, weight in weights.items() if weight.of_enough > LEANING}
        self.bad = leaning | {
            cell: weights.get(cell, Weight(0.0, seen.judged.departures.get(cell, 0.0), onset_s, 0))
            for blame in seen.judged.blames
            for cell in blame.cells
        }

    def about(self, one: Component) -> Arguments:
        slow = sorted((cell for cell in self.bad if self._crosses(one, cell)), key=lambda cell: -self.bad[cell].least)
        speaks_for = [_weighed(Fact.CELL_SLOW, cell, self.bad[cell]) for cell in slow[:_SHOWN]]
        if rest := slow[_SHOWN:]:
            longest = math.exp(self.bad[rest[0]].least)
            speaks_for.append(Argument(Fact.CELLS_SLOW, figures={"cells": len(rest), "times_as_long": longest}))
        if one in self._seen.slices and slow:
            speaks_for.append(Argument(Fact.SLOW_AS_A_WHOLE, (str(one),), {"enough": self._seen.slices[one]}))
        well = [
            value for cell, value in self._seen.judged.departures.items()
            if cell not in self.bad and self._crosses(one, cell)
        ]  # fmt: skip
        figures = {"cells": len(well), "times_as_long": math.exp(max(well, default=0.0))}
        speaks_against = [Argument(Fact.CELLS_WELL, figures=figures)] if well else []
        if one.kind == "nic":
            self._add_nic(one, speaks_for, speaks_against)
        return tuple(speaks_for), tuple(speaks_against)

    def _add_nic(self, one: Component, speaks_for: list[Argument], speaks_against: list[Argument]) -> None:
        """How long a NIC is busy, and the delays that tell its sides apart."""
        if weight := self._seen.utilisation.weight(one.name):
            speaks_for.append(_weighed(Fact.NIC_BUSY, (one.name,), weight))
        sent_s, received_s, elsewhere_s = self._seen.one_way.growth(one.name, self._onset_s)
        if side := self._seen.one_way.side(one.name, self._onset_s):
            figures = {"sent_s": sent_s, "received_s": received_s, "elsewhere_s": elsewhere_s}
            (speaks_for if side == one.side else speaks_against).append(
                Argument(Fact.ONE_WAY_DELAYS, (one.name,), figures)
            )

    def _crosses(self, one: Component, cell: Cell) -> bool:
        return crosses(one, cell, self._links)


def _weighed(fact: Fact, about: tuple[str, ...], weight: Weight) -> Argument:
    figures: dict[str, float] = {
        "times_as_long": math.exp(weight.least),
        "spans": weight.spans,
        "enough": weight.of_enough,
    }
    return Argument(fact, about, figures)


class _Lossy:
    """Arguments about what loses packets, by the counts at both ends of cells in the latest spans."""

    def __init__(self, seen: SpanEvidence) -> None:
        self._seen = seen
        self._links = seen.view.links()
        self.bad = Counter(cell for cells, _ in seen.counted for cell in cells)

    def about(self, one: Component) -> Arguments:
        lossy = [cell for cell, _ in self.bad.most_common() if crosses(one, cell, self._links)]
        measured = self._seen.judged.departures
        well = sum(cell not in self.bad and crosses(one, cell, self._links) for cell in measured)
        speaks_against = (Argument(Fact.CELLS_LOSE_NOTHING, figures={"cells": well}),) if well else ()
        return tuple(map(self._counts, lossy[:_SHOWN])), speaks_against

    def _counts(self, cell: Cell) -> Argument:
        every = [(counts.get(cell[0], NO_COUNTS), counts.get(cell[1], NO_COUNTS)) for _, counts in self._seen.counted]
        figures: dict[str, float] = {
            "spans": self.bad[cell],
            "sent_again": sum(sent.retransmits for sent, _ in every),
            "out_of_sequence": sum(came.out_of_sequence for _, came in every),
            "duplicates": sum(came.duplicates for _, came in every),
        }
        return Argument(Fact.PACKETS_LOST, cell, figures)


def missing_hypotheses(suspects: Sequence[Component], missing: Collection[MissingLink]) -> list[Hypothesis]:
    """The suspects for missing links, of which some are missing themselves, and some lead to those that are."""
    by_name = {link.name: link for link in missing}
    found = []
    for place, one in enumerate(suspects):
        link = by_name.get(one.name)
        others = tuple(name for name in by_name if name != one.name)
        facts = [Argument(Fact.MISSED_WITH, others)] if others else []
        if link is not None:
            figures = {"silent": float(link.silent), "since_s": link.heard_s}
            facts.insert(0, Argument(Fact.LINK_MISSING, (link.name,), figures))
        found.append(Hypothesis(one, standing(place), tuple(facts)))
    return found


def benign_hypotheses(component: Component, onset_s: float, seen: SpanEvidence, *, congested: bool) -> list[Hypothesis]:
    """What speaks for and against each benign explanation of cells that are slow since `onset_s`."""
    blame = _blame(component, seen)
    links = seen.judged.span.links
    behind = len(seen.benign.missing_links(blame, onset_s)) if blame.cells else 0
    arrivals, moved = float(seen.benign.arrivals(blame, onset_s)), float(len(seen.benign.moved(blame, onset_s)))
    others = {
        Benign.OTHER_JOB: (arrivals, Argument(Fact.TRAFFIC_ARRIVED, figures={"times": arrivals})),
        Benign.REROUTED: (moved, Argument(Fact.CONNECTIONS_MOVED, figures={"connections": moved})),
        Benign.LINKS_MISSING: (
            behind,
            Argument(Fact.LINKS_MISSING, figures={"links": float(len(seen.missing)), "behind": float(behind)}),
        ),
    }
    at = Standing.NAMED if congested else Standing.DROPPED
    congestion = Hypothesis(Benign.CONGESTION, at, *_congestion(blame, links, seen))
    return [congestion, *(_dropped(what, fact, seen=count > 0) for what, (count, fact) in others.items())]


def _dropped(what: Benign, fact: Argument, *, seen: bool) -> Hypothesis:
    """A benign explanation for which a fact speaks if it was seen at all, and against which otherwise."""
    return Hypothesis(what, Standing.DROPPED, (fact,) if seen else (), () if seen else (fact,))


def _blame(component: Component, seen: SpanEvidence) -> Blame:
    """What was blamed as this component; one without cells if it was not in this span."""
    named = (component.kind, component.name)
    alike = (one for one in seen.judged.blames if (one.component.kind, one.component.name) == named)
    return next(alike, Blame(component, (), 0.0))


def _congestion(blame: Blame, links: Links, seen: SpanEvidence) -> Arguments:
    """Marks at the receivers, and what the links carry that come nearest to their rates."""
    counts = [count for count in seen.congestion.marked(blame).values() if count is not None]
    marks = Argument(Fact.MARKED, figures={"packets": float(sum(counts)), "nics": float(len(counts))})
    carried = seen.congestion.carried(blame, links, seen.judged.departures)
    shares = {link: share for link, share in carried.items() if share is not None}
    facts = [
        Argument(Fact.LINK_FULL, (link,), {"share": shares[link]})
        for link in nlargest(_SHOWN, shares, shares.__getitem__)
    ]
    # Without marks nothing is known of what links carry.
    if sum(counts) and not shares and carried:
        facts = [Argument(Fact.RATES_UNKNOWN, figures={"links": float(len(carried))})]
    full = [fact for fact in facts if fact.figures.get("share", 0.0) >= 1 / SLIGHT_RATIO]
    rest = [fact for fact in facts if fact not in full]
    return ((marks, *full), tuple(rest)) if sum(counts) else (tuple(full), (marks, *rest))
