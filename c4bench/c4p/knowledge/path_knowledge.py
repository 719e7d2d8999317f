"""All that probing has found, port by port, with its age: what atlases are made from, and checked against."""

import itertools
from collections.abc import Collection, Iterable, Mapping

import msgspec

from c4bench.c4p.knowledge.atlas import Atlas, PathTrace, Probe
from c4bench.errors import UsageError
from c4bench.model.fabric import Path

Pair = tuple[str, str]
Trace = tuple[str | None, ...]
PROBES, COUNTERS = "probes", "counters"


class Entry(msgspec.Struct):
    """Where a source port of a pair leads: `hops` as heard last, and since when.

    `how` tells what answered, `probes` or `counters`. Of `traced` later traces `agreed` found the same, the newest at
    `confirmed_s`.
    """

    hops: tuple[str, ...]
    learnt_s: float
    confirmed_s: float
    how: str = PROBES
    traced: int = 0
    agreed: int = 0

    @property
    def confidence(self) -> float:
        """The chance that the next trace agrees, by Laplace's rule of succession from those there were."""
        return (self.agreed + 1) / (self.traced + 1)


class PathChanges(msgspec.Struct, frozen=True):
    """What traces say against what was known.

    `changed` pairs have a port that leads elsewhere, or is new. `heard` are hops that answered; `silent` hops should
    have, and no trace heard them. `gone` are hops that ports of these pairs led over and none does any more. By all of
    these, `crossed` are the pairs that had ports leading there, `onward` the hops that came next on their ways.
    """

    changed: frozenset[Pair] = frozenset()
    heard: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    crossed: Mapping[str, Collection[Pair]] = {}
    onward: Mapping[str, Collection[str]] = {}


class _Document(msgspec.Struct, frozen=True):
    """Knowledge as JSON."""

    entries: tuple[tuple[str, str, dict[int, Entry]], ...]


class PathKnowledge:
    """Entries by pair of NICs and source port. Times are seconds on the clock of whoever gives them."""

    def __init__(self) -> None:
        self._entries: dict[Pair, dict[int, Entry]] = {}
        # Probed, and never answered throughout.
        self._unanswered: set[Pair] = set()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that anything is known of, in order."""
        return tuple(sorted(self._entries))

    def entries(self, pair: Pair) -> Mapping[int, Entry]:
        """What is known of a pair's source ports."""
        return self._entries.get(pair, {})

    def path(self, pair: Pair, source_port: int) -> Path | None:
        """Where a source port leads; None where that is not known."""
        entry = self._entries.get(pair, {}).get(source_port)
        return Path(source_port, entry.hops) if entry else None

    def length(self, pair: Pair) -> int:
        """How many hops the pair is apart, 0 where that is not known."""
        return max((len(entry.hops) for entry in self.entries(pair).values()), default=0)

    def age_s(self, pair: Pair, now_s: float) -> float:
        """For how long nothing has confirmed what is known of a pair; infinite where nothing is known."""
        newest = max((entry.confirmed_s for entry in self.entries(pair).values()), default=float("-inf"))
        return now_s - newest

    def learn(self, traces: Mapping[Probe, Trace], now_s: float, how: str = PROBES) -> PathChanges:
        """Take over what traces have found; a trace that was not answered throughout leaves its entry as it was."""
        pairs = {(source, destination) for source, destination, _ in traces}
        before = self._over(pairs)
        ways = [entry.hops for pair in pairs for entry in self.entries(pair).values()]
        heard = {hop for hops in traces.values() for hop in _answered(hops)}
        silent: set[str] = set()
        changed: set[Pair] = set()
        for (source, destination, port), hops in sorted(traces.items()):
            pair = source, destination
            known = self._entries.get(pair, {}).get(port)
            if None in hops:
                silent.update(_expected(known, hops))
                if pair not in self._entries:
                    self._unanswered.add(pair)
            elif self._note(pair, port, known, _answered(hops), now_s, how):
                changed.add(pair)
        silent -= heard
        gone = before.keys() - self._over(pairs).keys()
        crossed = {hop: frozenset(before.get(hop, ())) for hop in silent | gone}
        onward = _onward(ways, crossed)
        return PathChanges(frozenset(changed), frozenset(heard), frozenset(silent), frozenset(gone), crossed, onward)

    def _note(self, pair: Pair, port: int, known: Entry | None, hops: tuple[str, ...], now_s: float, how: str) -> bool:
        if known is not None and known.hops == hops:
            known.traced += 1
            known.agreed += 1
            known.confirmed_s = now_s
            return False
        self._unanswered.discard(pair)
        self._entries.setdefault(pair, {})[port] = Entry(hops, now_s, now_s, how)
        return True

    def _over(self, pairs: Iterable[Pair]) -> dict[str, set[Pair]]:
        found: dict[str, set[Pair]] = {}
        for pair in pairs:
            for hop in {hop for entry in self.entries(pair).values() for hop in entry.hops}:
                found.setdefault(hop, set()).add(pair)
        return found

    def between(self, nics: Collection[str]) -> "PathKnowledge":
        """What is known of the pairs of these NICs."""
        found = PathKnowledge()
        found._entries = {pair: entries for pair, entries in self._entries.items() if set(pair) <= set(nics)}
        return found

    @property
    def unanswered(self) -> tuple[Pair, ...]:
        """Pairs that have been probed and nothing is known of, in order."""
        return tuple(sorted(self._unanswered))

    def recall(self, saved: "PathKnowledge") -> None:
        """Take over what was known earlier, with its age, of pairs that nothing is known of yet."""
        for pair in saved.pairs:
            self._entries.setdefault(pair, dict(saved.entries(pair)))

    def atlas(self) -> Atlas:
        """The distinct paths, for planning."""
        return Atlas.from_answers(
            [
                *(
                    PathTrace(*pair, port, entry.hops)
                    for pair, entries in sorted(self._entries.items())
                    for port, entry in sorted(entries.items())
                ),
                *(PathTrace(*pair, 0, (None,)) for pair in sorted(self._unanswered)),
            ]
        )

    def to_json(self) -> bytes:
        """A document that `from_json` reads."""
        return msgspec.json.encode(
            _Document(tuple((*pair, entries) for pair, entries in sorted(self._entries.items())))
        )

    @classmethod
    def from_json(cls, data: bytes) -> "PathKnowledge":
        """Read what `to_json` wrote. Raises UsageError for anything else."""
        try:
            document = msgspec.json.decode(data, type=_Document)
        except msgspec.MsgspecError as error:
            raise UsageError(f"these are not saved paths ({error}); learn them anew with c4bench paths") from None
        found = cls()
        found._entries = {(source, destination): dict(entries) for source, destination, entries in document.entries}
        return found


def _answered(hops: Trace) -> tuple[str, ...]:
    return tuple(hop for hop in hops if hop is not None)


def _expected(known: Entry | None, hops: Trace) -> Iterable[str]:
    """The hop that should have answered where a trace first met silence, if the trace had gone as known until there.

    Of what only counters know, silence says nothing.
    """
    place = hops.index(None)
    if known is not None and known.how == PROBES and place < len(known.hops) and known.hops[:place] == hops[:place]:
        return (known.hops[place],)
    return ()


def _onward(ways: Iterable[tuple[str, ...]], hops: Collection[str]) -> dict[str, set[str]]:
    """What came next after each of some hops."""
    found: dict[str, set[str]] = {}
    for hop, after in itertools.chain.from_iterable(map(itertools.pairwise, ways if hops else ())):
        if hop in hops:
            found.setdefault(hop, set()).add(after)
    return found
