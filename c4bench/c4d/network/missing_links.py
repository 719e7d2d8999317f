"""Links that C4P misses: others carry what they did, and are well, whether or not anything is slower for that."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from c4bench.c4d.diagnosis import Finding
from c4bench.c4d.ingest.known_paths import switches
from c4bench.c4d.localise import Blame, Links
from c4bench.c4d.thresholds import BEYOND_SHARING
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.fabric import MissingLink

# Connections are moved before their next operation, and share links from then on.
_MOVED_SPANS = 2
# Into a switch between others there lead two links, or more.
_LINKS_INTO_SWITCH = 2


class MissingLinkDetector:
    """Follows which of the missing links a job has lost, and says each once until it is back.

    That is at once where something is slower for want of it, and else when it has been missing for longer than a flap.
    """

    def __init__(self) -> None:
        self._missing: Collection[MissingLink] = ()
        # The links between switches that the job's ways lead over, and its NICs' own; also those that went missing.
        self._used: set[str] = set()
        self._own: set[str] = set()
        # Both as the ways are now, by these links.
        self._between: set[str] = set()
        self._ends: set[str] = set()
        self._links: Links = {}
        self._reported: list[MissingLink] = []
        self._named_s: dict[str, float] = {}

    def update(self, missing: Collection[MissingLink], links: Links) -> None:
        """What is missing now, and the `links` of the ways that the job uses, another object where they are others."""
        self._missing = missing
        names = {one.name for one in missing}
        if links is not self._links:
            self._links, known = links, [tuple(path) for path in links.values() if path]
            self._between = {hop for path in known for hop in path[1:-1]}
            self._ends = {hop for path in known for hop in (path[0], path[-1])}
        self._used = self._between | (self._used & names)
        self._own = self._ends | (self._own & names)
        self._reported = [one for one in self._reported if one.name in names]

    def note_named(self, components: Iterable[Component], now_s: float) -> None:
        """These are findings of the job already, for whatever reason."""
        self._named_s |= {one.name: now_s for one in components if one.kind == "link"}

    def explaining(self, wanting: Mapping[Blame, list[MissingLink]], onset_s: float) -> list[Finding]:
        """On what is missing where something is slower for want of it, since `onset_s`."""
        times = Counter(one for found in wanting.values() for one in found if self._is_new(one))
        return self._report([one for one, _ in times.most_common()], wanting, onset_s)

    def lasting(self, now_s: float, flap_s: float) -> list[Finding]:
        """On what the job's ways led over and has been missing for longer than `flap_s`."""
        gone = (one for one in self._missing if one.name in self._used and now_s - one.missed_s > flap_s)
        lost = [one for one in gone if self._is_new(one)]
        return self._report(lost, (), min((one.heard_s for one in lost), default=now_s))

    def _is_new(self, one: MissingLink) -> bool:
        """Whether neither it nor what went with it has been said, or named since it was last heard.

        Nobody goes round a NIC's own links: what went with them is the NIC, its host or its leaf, and shows by itself.
        """
        named = (other for other in self._missing if self._named_s.get(other.name, -math.inf) >= other.heard_s)
        own = (other for other in self._missing if other.name in self._own)
        return not failed_together(one, (*self._reported, *named, *own))

    def _report(self, lost: Sequence[MissingLink], slower: Collection[Blame], onset_s: float) -> list[Finding]:
        if not lost:
            return []
        together = [one for one in self._missing if failed_together(one, lost)]
        self._reported += together
        return [missing_links_finding(together, lost, slower, onset_s)]


def missing_links_behind(
    blame: Blame, links: Links, onset_s: float, span_s: float, missing: Collection[MissingLink]
) -> list[MissingLink]:
    """The missing links for want of which what a blame names became slower at `onset_s`; none where something else is.

    All of it has to cross what carries their traffic now, and to have slowed down as that came there.
    """
    if blame.excess > BEYOND_SHARING:
        return []
    late = [one for one in missing if one.heard_s - span_s <= onset_s <= one.missed_s + _MOVED_SPANS * span_s]
    crossed = [frozenset(links.get(cell, ())) for cell in blame.cells]
    met = [one for one in late if any(not hops.isdisjoint((one.name, *one.instead)) for hops in crossed)]
    carrying = frozenset(hop for one in met for hop in (one.name, *one.instead))
    return met if not any(hops.isdisjoint(carrying) for hops in crossed) else []


def failed_together(one: MissingLink, others: Iterable[MissingLink]) -> bool:
    """Whether a link may have gone with another, as those of a cable's two directions do."""
    return any(one.heard_s <= other.missed_s and other.heard_s <= one.missed_s for other in others)


def missing_links_finding(
    together: Sequence[MissingLink], lost: Sequence[MissingLink], slower: Collection[Blame], onset_s: float
) -> Finding:
    """The finding on links that were missed `together`, of which a job `lacked` some, and may be `slower` for that.

    Others are missed with one that is silent because nothing leads beyond it. Where none was heard to be, nothing tells
    which it was; and where one link carries all of it now, a switch may be sending everything there. A switch that has
    died has all of its links missed, and so has one that two others were joined by, whose link to either has.
    """
    silent = [one for one in together if one.silent]
    first, *others = silent or lost
    through = dict.fromkeys(name for one in lost for name in one.through)
    links = [] if silent else [Component("link", name) for name in (*(one.name for one in others), *through)]
    suspects = [*links, *_dead_switches(together, silent)]
    component = Component("link", first.name)
    names = " and ".join(str(blame.component) for blame in slower)
    cost = f"{names} is slower since" if slower else "nothing is known to be slower for that"
    evidence = [f"no probe crosses it since {first.heard_s:.3f} s, and {cost}"]
    if len(together) > 1:
        evidence.append(f"missed with it: {', '.join(one.name for one in together if one != first)}")
    return Finding(
        Syndrome.COMMUNICATION_SLOW,
        Cause.LINK_MISSING,
        component,
        onset_s,
        0.9 / (1 + len(suspects)),
        tuple(evidence),
        f"a probe that crosses {component}",
        {"slow_cells": float(sum(len(blame.cells) for blame in slower))},
        tuple(suspects),
    )


def _dead_switches(together: Sequence[MissingLink], silent: Collection[MissingLink]) -> list[Component]:
    """The switches for want of which all these links may be missed, by the least of their addresses.

    Nothing leads on from one; and no link is silent beyond it, as it would have answered before that.
    """
    names = {one.name for one in together}
    leading = [one for one in together if one.onward and names.issuperset(one.onward)]
    if len(leading) < _LINKS_INTO_SWITCH or not all(one in leading for one in silent):
        return []
    before: dict[str, set[str]] = {}
    for one in leading:
        for hop in one.onward:
            before.setdefault(hop, set()).add(one.name)
    return [Component("switch", min(one.addresses)) for one in switches(before)]
