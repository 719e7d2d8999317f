"""The state of links: lost ones stay closed until they have been back for a while; what is known of missing ones."""

from collections.abc import Collection, Iterable

import msgspec

from c4bench.c4p.knowledge.path_knowledge import Pair, PathChanges, PathKnowledge
from c4bench.c4p.policy import HoldDown
from c4bench.model.fabric import MissingLink


class _Loss(msgspec.Struct):
    """A link that was lost: how often in a row, when last, and since when it answers again."""

    times: int
    lost_s: float
    back_s: float | None = None
    closed: bool = True


class LinkHealth:
    """The links' states, by hop. Times are seconds on the caller's clock."""

    def __init__(self, patience: HoldDown = HoldDown()) -> None:  # noqa: B008  (frozen)
        self._patience = patience
        self._losses: dict[str, _Loss] = {}
        self._blamed: dict[str, float] = {}

    @property
    def closed(self) -> frozenset[str]:
        """The links not to be used."""
        return frozenset({hop for hop, loss in self._losses.items() if loss.closed} | self._blamed.keys())

    @property
    def missing(self) -> frozenset[str]:
        """The links that are lost and have not come back."""
        return frozenset(hop for hop, loss in self._losses.items() if loss.closed and loss.back_s is None)

    def lose(self, hops: Iterable[str], now_s: float) -> None:
        """These links carry nothing."""
        for hop in hops:
            known = self._losses.get(hop)
            if known is None or now_s - known.lost_s > self._patience.memory_s:
                self._losses[hop] = _Loss(1, now_s)
            elif known.back_s is not None:
                self._losses[hop] = _Loss(known.times + 1, now_s)

    def hear(self, hops: Iterable[str], now_s: float) -> None:
        """These links carry what is sent over them."""
        for hop in hops:
            loss = self._losses.get(hop)
            if loss is not None and loss.back_s is None:
                loss.back_s = now_s

    def blame(self, hops: Iterable[str], now_s: float) -> None:
        """These links are not to be used for a time, whatever probes say."""
        self._blamed |= dict.fromkeys(hops, now_s + self._patience.blame_s)

    def due(self, now_s: float) -> frozenset[str]:
        """The links that may be used from now on."""
        ready = {hop for hop, loss in self._losses.items() if loss.closed and self._calm(loss, now_s)}
        for hop in ready:
            self._losses[hop].closed = False
        over = {hop for hop, until_s in self._blamed.items() if until_s <= now_s}
        for hop in over:
            del self._blamed[hop]
        return frozenset(ready | over) - self.closed

    def _calm(self, loss: _Loss, now_s: float) -> bool:
        patience = self._patience
        wanted_s = min(patience.calm_s * 2 ** (loss.times - 1), patience.most_s)
        return loss.back_s is not None and now_s - loss.back_s >= wanted_s - 1e-9


class MissingLinks:
    """A record of each missing link, kept for as long as `health` misses it."""

    def __init__(self, knowledge: PathKnowledge, health: LinkHealth) -> None:
        self._knowledge, self._health = knowledge, health
        self._heard_s: dict[str, float] = {}
        self._lost: dict[str, MissingLink] = {}

    @property
    def missing(self) -> tuple[MissingLink, ...]:
        """Every missing link, by name."""
        return tuple(self._lost[hop] for hop in sorted(self._health.missing & self._lost.keys()))

    def hear(self, found: PathChanges, now_s: float) -> None:
        """Links have answered."""
        self._heard_s |= dict.fromkeys(found.heard, now_s)

    def note(self, found: PathChanges, now_s: float) -> None:
        """Pairs have been learnt anew, and links may have been lost by that."""
        self.hear(found, now_s)
        missing = self._health.missing
        self._lost = {hop: self._lost[hop] for hop in missing & self._lost.keys()}
        for hop in (found.silent | found.gone) & missing:
            ways = self._between(found.crossed[hop])
            newest = MissingLink(
                hop,
                self._heard_s.get(hop, now_s),
                now_s,
                instead=tuple(sorted(frozenset[str]().union(*ways) - missing)),
                silent=hop in found.silent,
                through=tuple(sorted(frozenset.intersection(*ways) - missing)) if ways else (),
                onward=tuple(sorted(found.onward.get(hop, ()))),
            )
            self._lost[hop] = _both(self._lost[hop], newest, missing) if hop in self._lost else newest

    def _between(self, pairs: Iterable[Pair]) -> list[frozenset[str]]:
        """The links between switches of each way that these pairs may use now."""
        entries = (entry for pair in pairs for entry in self._knowledge.entries(pair).values())
        return [frozenset(entry.hops[1:-1]) for entry in entries]


def _both(known: MissingLink, newest: MissingLink, missing: Collection[str]) -> MissingLink:
    """What has been known of a link since it is missing, and what is learnt of it now."""
    return msgspec.structs.replace(
        known,
        instead=tuple(sorted({*known.instead, *newest.instead}.difference(missing))),
        silent=known.silent or newest.silent,
        through=tuple(sorted({*known.through}.intersection(newest.through))),
        onward=tuple(sorted({*known.onward, *newest.onward})),
    )
