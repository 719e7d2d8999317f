"""What is slower since C4P misses a link: others carry what it did, and are well."""

import math
from collections.abc import Collection, Iterable, Sequence

from c4bench.c4d.localise import Blame, Links
from c4bench.c4d.switches import switches
from c4bench.c4d.thresholds import PEER_RATIO
from c4bench.c4d.verdict import Verdict
from c4bench.model.diagnosis import Cause, Component, Syndrome
from c4bench.model.fabric import MissingLink

# Connections are moved before their next operation, and share links from then on.
_MOVED_SPANS = 2
# Into a switch between others there lead two links, or more.
_WAYS_IN = 2
# Transfers that share links with others become no slower than this.
BEYOND_SHARING = math.log(PEER_RATIO)


def lacking(
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


def at_once(one: MissingLink, others: Iterable[MissingLink]) -> bool:
    """Whether a link may have gone with another, as those of a cable's two directions do."""
    return any(one.heard_s <= other.missed_s and other.heard_s <= one.missed_s for other in others)


def missing_verdict(
    together: Sequence[MissingLink], lacked: Sequence[MissingLink], slower: Collection[Blame], onset_s: float
) -> Verdict:
    """The finding on links that were missed `together`, some of which something was `slower` for want of.

    Others are missed with one that is silent because nothing leads beyond it. Where none was heard to be, nothing tells
    which it was; and where one link carries all of it now, a switch may be sending everything there. A switch that has
    died has all of its links missed, and so has one that two others were joined by, whose link to either has.
    """
    silent = [one for one in together if one.silent]
    first, *others = silent or lacked
    through = dict.fromkeys(name for one in lacked for name in one.through)
    links = [] if silent else [Component("link", name) for name in (*(one.name for one in others), *through)]
    suspects = [*links, *_dead(together, silent)]
    component = Component("link", first.name)
    names = " and ".join(str(blame.component) for blame in slower)
    evidence = [f"no probe crosses it since {first.heard_s:.3f} s, and {names} is slower since"]
    if len(together) > 1:
        evidence.append(f"missed with it: {', '.join(one.name for one in together if one != first)}")
    return Verdict(
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


def _dead(together: Sequence[MissingLink], silent: Collection[MissingLink]) -> list[Component]:
    """The switches for want of which all these links may be missed, by the least of their addresses.

    Nothing leads on from one; and no link is silent beyond it, as it would have answered before that.
    """
    names = {one.name for one in together}
    leading = [one for one in together if one.onward and names.issuperset(one.onward)]
    if len(leading) < _WAYS_IN or not all(one in leading for one in silent):
        return []
    before: dict[str, set[str]] = {}
    for one in leading:
        for hop in one.onward:
            before.setdefault(hop, set()).add(one.name)
    return [Component("switch", min(one.addresses)) for one in switches(before)]
