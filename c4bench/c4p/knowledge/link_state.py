"""Which links must not be used: lost links until they have been back for a while, and blamed links for a time."""

from collections.abc import Collection, Iterable

import msgspec

from c4bench.c4p.knowledge.atlas import Pair
from c4bench.c4p.knowledge.path_knowledge import PathChanges, PathKnowledge
from c4bench.c4p.policy import HoldDown
from c4bench.model.fabric import MissingLink

# Seconds: sums of times may be this much below the hold-down.
_ROUNDING_S = 1e-9


class _Loss(msgspec.Struct):
    """A lost link: how often it was lost in a row, when last, and since when it answers again."""

    times: int
    lost_s: float
    back_s: float | None = None
    closed: bool = True


class LinkHealth:
    """The links' states, by hop; `answered_s` is when a probe last crossed each. Times are seconds on one clock."""

    def __init__(self, hold_down: HoldDown = HoldDown()) -> None:  # noqa: B008  (frozen)
        self.hold_down = hold_down
        self._losses: dict[str, _Loss] = {}
        self._blamed: dict[str, float] = {}
        self.answered_s: dict[str, float] = {}

    @property
    def closed(self) -> frozenset[str]:
        """The links that must not be used."""
        return frozenset({hop for hop, loss in self._losses.items() if loss.closed} | self._blamed.keys())

    @property
    def missing(self) -> frozenset[str]:
        """The links that were lost and are not back."""
        return frozenset(hop for hop, loss in self._losses.items() if loss.closed and loss.back_s is None)

    def mark_lost(self, hops: Iterable[str], now_s: float) -> None:
        """Close links that carry nothing."""
        for hop in hops:
            known = self._losses.get(hop)
            if known is None or now_s - known.lost_s > self.hold_down.forget_s:
                self._losses[hop] = _Loss(1, now_s)
            elif known.back_s is not None:
                self._losses[hop] = _Loss(known.times + 1, now_s)

    def mark_answered(self, hops: Iterable[str], now_s: float) -> None:
        """Record that probes crossed these links, and begin the hold-down of those that were lost."""
        for hop in hops:
            self.answered_s[hop] = now_s
            loss = self._losses.get(hop)
            if loss is not None and loss.back_s is None:
                loss.back_s = now_s

    def avoid(self, hops: Iterable[str], now_s: float) -> None:
        """Close blamed links for a time, whatever probes find."""
        self._blamed |= dict.fromkeys(hops, now_s + self.hold_down.avoid_s)

    def reopen_due(self, now_s: float) -> frozenset[str]:
        """Open the links whose time is over, and return them."""
        ready = {hop for hop, loss in self._losses.items() if loss.closed and self._held_down(loss, now_s)}
        for hop in ready:
            self._losses[hop].closed = False
        over = {hop for hop, until_s in self._blamed.items() if until_s <= now_s}
        for hop in over:
            del self._blamed[hop]
        return frozenset(ready | over) - self.closed

    def _held_down(self, loss: _Loss, now_s: float) -> bool:
        """Whether a link has been back for its whole hold-down."""
        hold_down = self.hold_down
        required_s = min(hold_down.first_s * 2 ** (loss.times - 1), hold_down.max_s)
        return loss.back_s is not None and now_s - loss.back_s >= required_s - _ROUNDING_S


class MissingLinks:
    """A record of each link that `health` lists as missing: since when, and which other links carry its traffic."""

    def __init__(self, knowledge: PathKnowledge, health: LinkHealth) -> None:
        self._knowledge, self._health = knowledge, health
        self._records: dict[str, MissingLink] = {}

    @property
    def missing(self) -> tuple[MissingLink, ...]:
        """Every missing link, by name."""
        return tuple(self._records[hop] for hop in sorted(self._health.missing & self._records.keys()))

    def confirm(self, hops: Iterable[str]) -> None:
        """Record that silent links were silent again to a question that their switches could answer."""
        for hop in self._records.keys() & set(hops):
            self._records[hop] = msgspec.structs.replace(self._records[hop], confirmed=True)

    def update(self, changes: PathChanges, now_s: float) -> bool:
        """Update the links' health and the records after pairs were learnt; return whether a missing link answered."""
        back = not changes.answered.isdisjoint(self._health.missing)
        self._health.mark_lost(changes.silent | changes.gone, now_s)
        self._health.mark_answered(changes.answered, now_s)
        missing = self._health.missing
        self._records = {hop: self._records[hop] for hop in missing & self._records.keys()}
        for hop in (changes.silent | changes.gone) & missing:
            heard_s = self._health.answered_s.get(hop, now_s)
            paths = self._paths_of(changes.crossed[hop], heard_s)
            newest = MissingLink(
                hop,
                heard_s,
                now_s,
                instead=tuple(sorted(frozenset[str]().union(*paths) - missing)),
                silent=hop in changes.silent,
                through=tuple(sorted(frozenset.intersection(*paths) - missing)) if paths else (),
                onward=tuple(sorted(changes.onward.get(hop, ()))),
                confirmed=hop not in changes.silent,
            )
            self._records[hop] = _merged(self._records[hop], newest, missing) if hop in self._records else newest
        return back

    def _paths_of(self, pairs: Iterable[Pair], heard_s: float) -> list[frozenset[str]]:
        """The links between switches of each known path of these pairs: those that probes took after `heard_s`, if any.

        Older paths may have changed with the missing link, as when a switch begins to send everything to one port.
        """
        entries = [entry for pair in pairs for entry in self._knowledge.entries(pair).values()]
        newer = [entry for entry in entries if entry.confirmed_s > heard_s]
        return [frozenset(entry.hops[1:-1]) for entry in newer or entries]


def avoidable(hops: Iterable[str], knowledge: PathKnowledge) -> frozenset[str]:
    """Those of the links that any pair of NICs can go around: it knows paths that cross them and paths that do not."""
    paths = [[entry.hops for entry in knowledge.entries(pair).values()] for pair in knowledge.pairs]
    return frozenset(hop for hop in hops if any(len({hop in path for path in known}) > 1 for known in paths))


def _merged(known: MissingLink, newest: MissingLink, missing: Collection[str]) -> MissingLink:
    """The record of a link since it is missing, updated with what was learnt now."""
    return msgspec.structs.replace(
        known,
        instead=tuple(sorted({*known.instead, *newest.instead}.difference(missing))),
        silent=known.silent or newest.silent,
        confirmed=known.confirmed or newest.confirmed,
        through=tuple(sorted({*known.through}.intersection(newest.through))),
        onward=tuple(sorted({*known.onward, *newest.onward})),
    )
