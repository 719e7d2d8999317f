"""Missing links: C4P's probes cross them no more, and other links carry their traffic."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from c4bench.attribution.weigh import Blame, Cell, Links
from c4bench.c4d.confidence import confidence
from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.observe.shared_fabric import switches
from c4bench.c4d.thresholds import APART_SPANS, BEYOND_SHARING
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.fabric import MissingLink

# A switch that also has searches to answer confirms that a link is silent within so many times the longest flap.
_CONFIRMED_FLAPS = 2.0


class MissingLinkDetector:
    """Follows which of the missing links a job has lost, and reports each once until it is back.

    A link that explains a slowdown is reported at once, a silent one once its silence is confirmed. Any other is
    reported after it has been missing for longer than a flap.
    """

    def __init__(self) -> None:
        self._missing: Collection[MissingLink] = ()
        # The links between switches that the job's paths cross, and its NICs' own; also those that went missing.
        self._used: set[str] = set()
        self._own: set[str] = set()
        # Both by the present paths.
        self._between: set[str] = set()
        self._ends: set[str] = set()
        self._links: Links = {}
        self._reported: list[MissingLink] = []
        self._named_s: dict[str, float] = {}

    def update(self, missing: Collection[MissingLink], links: Links) -> None:
        """Set what is missing now, and the `links` that the job's cells cross: another object when they change."""
        self._missing = missing
        names = {link.name for link in missing}
        if links is not self._links:
            self._links, known = links, [tuple(path) for path in links.values() if path]
            self._between = {hop for path in known for hop in path[1:-1]}
            self._ends = {hop for path in known for hop in (path[0], path[-1])}
        self._used = self._between | (self._used & names)
        self._own = self._ends | (self._own & names)
        self._reported = [link for link in self._reported if link.name in names]

    def note_named(self, components: Iterable[Component], now_s: float) -> None:
        """Note components that are named already, by any stage."""
        self._named_s |= {component.name: now_s for component in components if component.kind == "link"}

    def explaining(self, wanting: Mapping[Blame, list[MissingLink]], onset_s: float) -> list[Finding]:
        """Findings on missing links that explain slow components since `onset_s`.

        A silent one has to be confirmed: what left it may be slower for that, though the link is well.
        """
        sure = (link for missing in wanting.values() for link in missing if link.confirmed or not link.silent)
        times = Counter(link for link in sure if self._is_new(link))
        return self._report([link for link, _ in times.most_common()], wanting, onset_s)

    def lasting(self, now_s: float, flap_s: float) -> list[Finding]:
        """Findings on links that the job's paths crossed and that are missing for longer than `flap_s`.

        What went missing together is judged once all of it is confirmed; where a part is, after as long again.
        """
        gone = (link for link in self._missing if link.name in self._used and now_s - link.missed_s > flap_s)
        lost = [link for link in gone if self._is_new(link)]
        together = [link for link in self._missing if failed_together(link, lost)]
        doubtful = [link for link in together if not link.confirmed]
        waiting = any(now_s - link.missed_s <= _CONFIRMED_FLAPS * flap_s for link in doubtful)
        if waiting or doubtful == together:
            return []
        return self._report(lost, (), min((link.heard_s for link in lost), default=now_s))

    def _is_new(self, link: MissingLink) -> bool:
        """Whether no stage has reported it, or a link that failed with it, since it was last seen.

        A NIC's own links cannot be bypassed: their failure is that of the NIC, its host or its leaf, found elsewhere.
        """
        named = (other for other in self._missing if self._named_s.get(other.name, -math.inf) >= other.heard_s)
        own = (other for other in self._missing if other.name in self._own)
        return not failed_together(link, (*self._reported, *named, *own))

    def _report(self, lost: Sequence[MissingLink], slower: Collection[Blame], onset_s: float) -> list[Finding]:
        if not lost:
            return []
        together = [link for link in self._missing if failed_together(link, lost)]
        self._reported += together
        if through := self._only_way(together):
            return [_misrouted(through, together, slower, onset_s)]
        return [missing_links_finding(together, lost, self._beyond(together, lost), slower, onset_s)]

    def _only_way(self, together: Sequence[MissingLink]) -> list[str]:
        """The links, in the order of a path, over which a switch sends all that several links beside them carried.

        Several links do not fail at the same moment, and their switches would not answer if they were dead.
        """
        later = {hop for link in together for hop in link.onward}
        ways = {link.through for link in together if link.name not in later}
        beside = sum(link.name not in later for link in together)
        if any(link.silent for link in together) or len(ways) != 1 or beside <= 1:
            return []
        (through,) = ways
        path = next((tuple(path) for path in self._links.values() if set(through) <= set(path)), through)
        return sorted(through, key=path.index)

    def _beyond(self, together: Sequence[MissingLink], lost: Sequence[MissingLink]) -> list[str]:
        """The links that lead on from lost ones to other switches, and that no path over other links crosses."""
        names = {link.name for link in together}
        elsewhere = self._own.union(*(path for path in self._links.values() if names.isdisjoint(path)))
        return [hop for link in lost if elsewhere.isdisjoint(link.onward) for hop in link.onward]


def missing_links_behind(
    blame: Blame,
    links: Links,
    returning: Mapping[Cell, Collection[Sequence[str]]],
    onset_s: float,
    span_s: float,
    missing: Collection[MissingLink],
) -> list[MissingLink]:
    """The missing links that explain why a blame's cells became slower at `onset_s`; empty if they do not.

    All its cells must cross links that carry the missing links' traffic, and have slowed down as it moved there; or all
    paths that their acknowledgements may take (`returning`) must cross links that carry all of it.
    """
    if blame.excess > BEYOND_SHARING:
        return []
    late = [link for link in missing if link.heard_s - span_s <= onset_s <= link.missed_s + APART_SPANS * span_s]
    full = {hop for link in late if link.through for hop in (link.name, *link.through)}
    answered = {
        cell for cell in blame.cells if returning[cell] and not any(full.isdisjoint(path) for path in returning[cell])
    }
    crossed = {cell: frozenset(links.get(cell, ())) for cell in blame.cells}
    met = [
        link
        for link in late
        if (link.through and answered)
        or any(not hops.isdisjoint((link.name, *link.instead)) for hops in crossed.values())
    ]
    carrying = frozenset(hop for link in met for hop in (link.name, *link.instead))
    return met if not any(crossed[cell].isdisjoint(carrying) for cell in crossed.keys() - answered) else []


def failed_together(link: MissingLink, others: Iterable[MissingLink]) -> bool:
    """Whether a link may have failed together with another, as the two directions of a cable do."""
    return any(link.heard_s <= other.missed_s and other.heard_s <= link.missed_s for other in others)


def _misrouted(
    through: Sequence[str], together: Sequence[MissingLink], slower: Collection[Blame], onset_s: float
) -> Finding:
    """The finding on a switch that sends everything over one link: its cause is seen at that link."""
    component, *others = (Component("link", hop) for hop in through)
    names = " and ".join(str(blame.component) for blame in slower)
    evidence = [
        f"all probes cross it that crossed {', '.join(link.name for link in together)} before",
        f"{names} slower since" if slower else "nothing is known to be slower for that",
    ]
    return _finding(
        [component, *others], evidence, "a probe that crosses another link of the same switch", slower, onset_s
    )


def _finding(
    suspects: Sequence[Component], evidence: Sequence[str], refuted_by: str, slower: Collection[Blame], onset_s: float
) -> Finding:
    """The finding that names the first of the suspects, with the others as alternatives."""
    component, *others = suspects
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.LINK_MISSING,
        component,
        onset_s,
        confidence(),
        tuple(evidence),
        refuted_by,
        {"slow_cells": float(sum(len(blame.cells) for blame in slower))},
        tuple(others),
    )


def missing_links_finding(
    together: Sequence[MissingLink],
    lost: Sequence[MissingLink],
    beyond: Sequence[str],
    slower: Collection[Blame],
    onset_s: float,
) -> Finding:
    """The finding on links that went missing `together`, of which a job `lost` some, and may be `slower` for it.

    `beyond` are links that the job reached by lost ones only: if they are dead, nothing is sent towards them.

    A silent link takes links beyond it with it. If none is silent, any of the lost ones may have failed; and where one
    link carries all their traffic, a switch may be sending everything there. A dead switch misses all of its links,
    and so does a switch between two others if its link to either is dead. Without such a switch, any link that is
    missing together with the lost ones may have failed.
    """
    silent = [link for link in together if link.silent and link.confirmed]
    first, dead = (silent or lost)[0], _dead_switches(together, silent, beyond)
    failed = lost if dead else [*lost, *together]
    through = (hop for link in lost for hop in link.through)
    possible = dict.fromkeys([*(link.name for link in failed), *beyond, *through])
    links = [] if silent else [Component("link", name) for name in possible if name != first.name]
    component = Component("link", first.name)
    names = " and ".join(str(blame.component) for blame in slower)
    cost = f"{names} is slower since" if slower else "nothing is known to be slower for that"
    evidence = [f"no probe crosses it since {first.heard_s:.3f} s, and {cost}"]
    if len(together) > 1:
        evidence.append(f"missed with it: {', '.join(link.name for link in together if link != first)}")
    return _finding([component, *links, *dead], evidence, f"a probe that crosses {component}", slower, onset_s)


def _dead_switches(
    together: Sequence[MissingLink], silent: Collection[MissingLink], beyond: Sequence[str]
) -> list[Component]:
    """The switches whose failure would explain all these missing links, by their lowest addresses.

    No link leads on from such a switch, and no link beyond it is silent, as the switch would have answered first.
    """
    names = {*beyond, *(link.name for link in together)}
    leading = [link for link in together if link.onward and names.issuperset(link.onward)]
    if not all(link in leading for link in silent):
        return []
    before: dict[str, set[str]] = {}
    for link in leading:
        for hop in link.onward:
            before.setdefault(hop, set()).add(link.name)
    return [Component("switch", min(link.addresses)) for link in switches(before)]
