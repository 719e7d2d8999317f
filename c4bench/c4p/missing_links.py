"""What is known of links that are missing: when they were last heard, and which others carry what they did."""

from collections.abc import Collection, Iterable

import msgspec

from c4bench.c4p.link_health import LinkHealth
from c4bench.c4p.path_knowledge import Pair, PathChanges, PathKnowledge
from c4bench.model.fabric import MissingLink


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
