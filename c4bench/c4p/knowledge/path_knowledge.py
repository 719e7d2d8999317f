"""Everything that probing has found, by source port, with its age, and how traces differ from it. Atlases show it.

A search that has not ended shows something of the paths that it has not found, as far as it is a random sample.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Atlas, Pair, PathTrace, Probe
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.model.fabric import FIVE_TUPLE, Hash, Path


class Traced(NamedTuple):
    """How many source ports of a pair are or were traced, and how many before the first that is not complete."""

    ports: int
    complete: int


class PathSample(NamedTuple):
    """What a search shows of the hops that its paths do not cross.

    Switches have answers left for some NICs only, so paths over others are found first: what was `traced` of each pair,
    the hops that were `seen`, also on paths not known to their end, and whether a hop `can_answer` a NIC.
    """

    traced: Mapping[Pair, Traced]
    seen: Collection[str]
    can_answer: Callable[[str, str], bool]

    def size(self, hop: str, found: Mapping[Pair, int]) -> int:
        """How many of the paths `found` by pair are a random sample of those that may cross this hop."""
        answered = {pair for pair in found if self.can_answer(pair[0], hop)}
        others = [self.traced[pair] for pair in sorted(found) if pair not in answered and pair in self.traced]
        return sum(found[pair] for pair in answered) + sample_size(others)


def sample_size(pairs: Sequence[Traced]) -> int:
    """How many traces of these pairs are a random sample of paths: those before the first one that is not complete.

    Traces over a switch that has answers left are completed before others, whatever share of paths it has. The order is
    that in which they are asked: the first port of each pair, then the second.
    """
    stops = [(traced.complete, place) for place, traced in enumerate(pairs) if traced.complete < traced.ports]
    if not stops:
        return sum(traced.ports for traced in pairs)
    complete, stop = min(stops)
    return sum(min(traced.ports, complete + (place < stop)) for place, traced in enumerate(pairs))


Paths = list[tuple[str, ...]]
# The hops of each source port's path, by pair of NICs.
PathsOfPairs = Mapping[Pair, Mapping[int, tuple[str, ...]]]
# The probability that a hop which carries its share is not on any of the paths found since then.
_MISSED = 0.01


def gone_hops(before: PathsOfPairs, found: PathsOfPairs, sample: PathSample | None, *, certain: bool) -> set[str]:
    """The hops that pairs crossed `before`, and that no path `found` since then crosses.

    A port that crossed the hop must have been found to take another path. Unless it is `certain` that all paths were
    found, the `sample` must be large enough to have one over the hop; without one, the paths found are a random sample.
    """
    now = pairs_by_hop(found).keys() | set(sample.seen if sample else ())
    gone: set[str] = set()
    for hop, pairs in pairs_by_hop(before).items():
        if hop in now or not any(_bypassed(hop, before[pair], found[pair]) for pair in pairs):
            continue
        counts = {pair: len(found[pair]) for pair in pairs}
        size = sample.size(hop, counts) if sample else sum(counts.values())
        if certain or (1 - _share(hop, _paths(before, pairs), _paths(found, pairs), now)) ** size <= _MISSED:
            gone.add(hop)
    return gone


def _share(hop: str, before: Paths, found: Paths, now: Collection[str]) -> float:
    """The share of paths that cross a hop if it is there: as `before` beside paths that are crossed `now`.

    It is no more than that of each hop which paths `found` cross in its place.
    """
    over = [hops for hops in before if hop in hops]
    beside = sum(hop not in hops and all(each in now for each in hops) for hops in before)
    place = over[0].index(hop)
    instead = {hops[place] for hops in found if len(hops) > place}
    return min(len(over) / (len(over) + beside), 1 / (1 + len(instead)))


def _paths(known: PathsOfPairs, pairs: Iterable[Pair]) -> Paths:
    return [hops for pair in pairs for hops in known[pair].values()]


def pairs_by_hop(paths: PathsOfPairs) -> dict[str, set[Pair]]:
    """The pairs with a path over each hop."""
    by_hop: dict[str, set[Pair]] = {}
    for pair, of_ports in paths.items():
        for hop in {hop for hops in of_ports.values() for hop in hops}:
            by_hop.setdefault(hop, set()).add(pair)
    return by_hop


def _bypassed(hop: str, before: Mapping[int, tuple[str, ...]], found: Mapping[int, tuple[str, ...]]) -> bool:
    """Whether a port that crossed the hop before takes another path now."""
    return any(port in found and hop not in found[port] for port, hops in before.items() if hop in hops)


class PathChanges(msgspec.Struct, frozen=True):
    """How traces differ from what was known.

    `changed` are pairs with a new port, or a port that takes another path. `answered` are hops that answered; `silent`
    are hops that should have answered and did not to any trace, and `refused` are these with the NICs that asked them.
    `gone` are hops that ports of pairs crossed before they were learnt again, and none crosses now. For each silent or
    gone hop, `crossed` are the pairs whose ports crossed it, and `onward` the next hops on their paths.
    """

    changed: frozenset[Pair] = frozenset()
    answered: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    crossed: Mapping[str, Collection[Pair]] = {}
    onward: Mapping[str, Collection[str]] = {}
    refused: frozenset[tuple[str, str]] = frozenset()


def path_changes(
    known: PathsOfPairs,
    changed: Collection[Pair] = (),
    answered: Collection[str] = (),
    refused: Collection[tuple[str, str]] = (),
    gone: Collection[str] = (),
) -> PathChanges:
    """The changes, with the pairs and next hops of the `known` paths that crossed a silent or gone hop."""
    silent = frozenset(hop for _, hop in refused)
    by_hop = pairs_by_hop(known)
    crossed = {hop: frozenset(by_hop.get(hop, ())) for hop in silent.union(gone)}
    onward = _onward(itertools.chain.from_iterable(of_ports.values() for of_ports in known.values()), crossed)
    sets = frozenset(changed), frozenset(answered), silent, frozenset(gone)
    return PathChanges(*sets, crossed, onward, frozenset(refused))


def _onward(paths: Iterable[tuple[str, ...]], hops: Collection[str]) -> dict[str, set[str]]:
    """The hops that follow each of `hops` on these paths."""
    onward: dict[str, set[str]] = {}
    for hop, following in itertools.chain.from_iterable(map(itertools.pairwise, paths if hops else ())):
        if hop in hops:
            onward.setdefault(hop, set()).add(following)
    return onward


# What a user has to know of source ports that are not those of every packet.
BY_QP = "the switches hash the destination QP too: a master finds each QP's own port, and only probes go by these"
Trace = tuple[str | None, ...]
# What a path was learnt by: answers to probes, or the switches' packet counters.
PROBES, COUNTERS = "probes", "counters"


class PathEntry(msgspec.Struct):
    """The path of a source port of a pair: the `hops` of its newest trace, and since when they are known.

    `how` is what it was learnt by, `probes` or `counters`. Of `traced` later traces `agreed` found the same path, the
    newest at `confirmed_s`. Times are in seconds.
    """

    hops: tuple[str, ...]
    learnt_s: float
    confirmed_s: float
    how: str = PROBES
    traced: int = 0
    agreed: int = 0

    @property
    def confidence(self) -> float:
        """The probability that the next trace agrees, by Laplace's rule of succession."""
        return (self.agreed + 1) / (self.traced + 1)


class _Document(msgspec.Struct, frozen=True):
    """The knowledge as JSON."""

    entries: tuple[tuple[str, str, dict[int, PathEntry]], ...]
    unfinished: tuple[Pair, ...] = ()
    hash: Hash | msgspec.UnsetType = msgspec.UNSET


class PathKnowledge:
    """Entries by pair of NICs and source port. Times are seconds on the caller's clock.

    `changes` counts how often the path of a source port was learnt, changed or was forgotten. `hash` is what switches
    choose paths by: with queue pairs, the paths are there, but each source port leads over one for each queue pair.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.hash: Hash = FIVE_TUPLE
        self._entries: dict[Pair, dict[int, PathEntry]] = {}
        # Pairs that were probed, and no trace was answered by all hops.
        self._unanswered: set[Pair] = set()
        # What was known last of each port, and all paths that were known, of pairs that are being learnt again; and
        # those of them without a new path.
        self._before: dict[Pair, dict[int, PathEntry]] = {}
        self._paths_before: dict[Pair, set[tuple[str, ...]]] = {}
        self._outdated: set[Pair] = set()
        self._lost: frozenset[str] = frozenset()
        self._unfinished: set[Pair] = set()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs with a known path, in order."""
        return tuple(sorted(self._entries))

    def entries(self, pair: Pair) -> Mapping[int, PathEntry]:
        """The known entries of a pair, by source port."""
        return self._entries.get(pair, {})

    def traces(self) -> dict[Probe, tuple[str, ...]]:
        """The hops of all known entries."""
        return {(*pair, port): entry.hops for pair, known in self._entries.items() for port, entry in known.items()}

    def path(self, pair: Pair, source_port: int) -> Path | None:
        """The path of a source port; None if it is not known."""
        entry = self._entries.get(pair, {}).get(source_port)
        return Path(source_port, entry.hops) if entry else None

    def ports_by_path(self, pair: Pair) -> list[int]:
        """A source port of each known path of the pair."""
        return list({entry.hops: port for port, entry in self.entries(pair).items()}.values())

    def paths(self, pair: Pair) -> set[tuple[str, ...]]:
        """The known paths of the pair, with those known before if it is being learnt again, each by its hops."""
        return {entry.hops for entry in self.entries(pair).values()} | self._paths_before.get(pair, set())

    def length(self, pair: Pair) -> int:
        """The number of hops of the pair's longest path; 0 if none is known."""
        return max((len(entry.hops) for entry in self.entries(pair).values()), default=0)

    def age_s(self, pair: Pair, now_s: float) -> float:
        """Seconds since a trace last confirmed a path of the pair; infinite if none is known."""
        return now_s - max((entry.confirmed_s for entry in self.entries(pair).values()), default=float("-inf"))

    def outdated(self, pair: Pair) -> bool:
        """Whether the pair is being learnt again, and no new path of it was found yet."""
        return pair in self._outdated

    def lacks_paths(self, pair: Pair) -> bool:
        """Whether the pair is being learnt again, and has fewer known paths without lost links than before."""
        now, before = {entry.hops for entry in self.entries(pair).values()}, self._paths_before.get(pair, set())
        fewer = sum(map(self._lost.isdisjoint, now)) < sum(map(self._lost.isdisjoint, before))
        return fewer or self.outdated(pair)

    def begin(self, pairs: Iterable[Pair], again: Iterable[Pair] = (), lost: Collection[str] = ()) -> None:
        """Begin to learn these pairs; the first new path of a pair that is learnt `again` replaces all that was known.

        Only paths over `lost` links stay, to see by them when the link is back. If learning again is interrupted by
        another change, what was known before it still counts as known before.
        """
        self._unfinished.update(pairs)
        self._lost = frozenset(lost)
        self._outdated.update(again := self._entries.keys() & set(again))
        self._paths_before |= {pair: self.paths(pair) for pair in again}
        self._before |= {pair: self._before.get(pair, {}) | self._entries[pair] for pair in again}

    def learn(
        self, traces: Mapping[Probe, Trace], now_s: float, how: str = PROBES, sample: PathSample | None = None
    ) -> PathChanges:
        """Store what traces have found, and return what changed; a trace with a missing answer changes no entry.

        Without a `sample`, the paths found since `begin` are a random one.
        """
        pairs = {(source, destination) for source, destination, _ in traces}
        known = {pair: dict(self.entries(pair)) for pair in pairs} | self._before
        answered = {hop for hops in traces.values() for hop in _answered(hops)}
        refused: set[tuple[str, str]] = set()
        changed: set[Pair] = set()
        for (source, destination, port), hops in sorted(traces.items()):
            pair = source, destination
            entry = known.get(pair, {}).get(port)
            if None in hops:
                refused.update((source, hop) for hop in _expected(entry, hops) if hop not in answered)
                if pair not in self._entries:
                    self._unanswered.add(pair)
            elif self._store(pair, port, entry, _answered(hops), now_s, how):
                changed.add(pair)
        return path_changes(_all_paths(known), changed, answered, refused, self._gone(sample))

    def end(self, given_up: Collection[Pair] = ()) -> PathChanges:
        """End learning: all paths were found, but of pairs `given_up`. Return the hops that none crosses any more."""
        self._unfinished.clear()
        self._before = {pair: before for pair, before in self._before.items() if pair not in given_up}
        before, gone, self._before = self._before, self._gone(certain=True), {}
        self._paths_before.clear()
        self._outdated.clear()
        return path_changes(_all_paths(before), gone=gone)

    def _gone(self, sample: PathSample | None = None, *, certain: bool = False) -> set[str]:
        again = [pair for pair in self._before if not self.outdated(pair)]
        before, found = (_all_paths({pair: known[pair] for pair in again}) for known in (self._before, self._entries))
        return gone_hops(before, found, sample, certain=certain)

    def _store(
        self, pair: Pair, port: int, known: PathEntry | None, hops: tuple[str, ...], now_s: float, how: str
    ) -> bool:
        """Store one complete trace; return whether it differs from what was known."""
        if self.outdated(pair):
            self.changes += 1
            self._outdated.discard(pair)
            before = self._before[pair].items()
            self._entries[pair] = {port: entry for port, entry in before if not self._lost.isdisjoint(entry.hops)}
        if known is not None and known.hops == hops:
            self.changes += self._entries[pair].get(port) is not known
            self._entries[pair][port] = known
            self.confirm((*pair, port), now_s)
            return False
        self.changes += 1
        self._unanswered.discard(pair)
        self._entries.setdefault(pair, {})[port] = PathEntry(hops, now_s, now_s, how)
        return True

    def confirm(self, probe: Probe, now_s: float) -> None:
        """Note that one more answer to this source port's probes was as expected."""
        source, destination, port = probe
        entry = self._entries[source, destination][port]
        entry.traced += 1
        entry.agreed += 1
        entry.confirmed_s = now_s

    def forget(self, probe: Probe) -> None:
        """Forget the path of a source port: it takes another one."""
        source, destination, port = probe
        self.changes += 1
        self._entries[source, destination].pop(port, None)

    def clear(self) -> None:
        """Forget all paths."""
        self.changes += 1
        self._entries.clear()
        self._unfinished.clear()

    def between(self, nics: Collection[str]) -> "PathKnowledge":
        """The part that is about pairs of these NICs."""
        part = PathKnowledge()
        part.hash = self.hash
        part._entries = {pair: entries for pair, entries in self._entries.items() if set(pair) <= set(nics)}
        return part

    def switches(self) -> DisjointSets[str]:
        """The hops that belong to one switch, by all known paths."""
        return switches_on(entry.hops for entries in self._entries.values() for entry in entries.values())

    @property
    def unfinished(self) -> frozenset[Pair]:
        """Pairs that have more paths, perhaps: learning them has not ended."""
        return frozenset(self._unfinished)

    @property
    def unanswered(self) -> tuple[Pair, ...]:
        """Pairs that were probed and have no known path, in order."""
        return tuple(sorted(self._unanswered))

    def recall(self, saved: "PathKnowledge") -> None:
        """Add saved entries, with their age, for pairs without a known path."""
        for pair in saved.pairs:
            if pair not in self._entries:
                self.changes += 1
                self._entries[pair] = dict(saved.entries(pair))
                self._unfinished.update(saved.unfinished & {pair})

    def atlas(self) -> Atlas:
        """The atlas of all known paths, for planning."""
        traces = [PathTrace(*pair, 0, (None,)) for pair in sorted(self._unanswered)]
        for pair, entries in sorted(self._entries.items()):
            traces += [PathTrace(*pair, port, entry.hops) for port, entry in sorted(entries.items())]
        atlas = Atlas.from_answers(traces)
        atlas.hash = self.hash
        return atlas

    def to_json(self) -> bytes:
        """A document that `from_json` reads."""
        entries = tuple((*pair, entries) for pair, entries in sorted(self._entries.items()))
        known = msgspec.UNSET if self.hash == FIVE_TUPLE else self.hash
        return msgspec.json.encode(_Document(entries, tuple(sorted(self._unfinished)), known))

    @classmethod
    def from_json(cls, data: bytes) -> "PathKnowledge":
        """Read what `to_json` wrote. Raises UsageError for anything else."""
        try:
            document = from_json(data, _Document)
        except DecodingError as error:
            raise UsageError(f"these are not saved paths ({error}); learn them again with `c4bench paths`") from None
        knowledge = cls()
        knowledge._entries = {(source, destination): dict(entries) for source, destination, entries in document.entries}
        knowledge._unfinished = set(document.unfinished)
        knowledge.hash = FIVE_TUPLE if document.hash is msgspec.UNSET else document.hash
        return knowledge


def switches_on(paths: Iterable[tuple[str, ...]]) -> DisjointSets[str]:
    """The hops that lead to one switch: those directly before the same hop."""
    before: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        for hop, following in itertools.pairwise(path):
            before[following].add(hop)
    switches: DisjointSets[str] = DisjointSets()
    for together in before.values():
        switches.join(sorted(together))
    return switches


def _all_paths(known: Mapping[Pair, Mapping[int, PathEntry]]) -> dict[Pair, dict[int, tuple[str, ...]]]:
    return {pair: {port: entry.hops for port, entry in entries.items()} for pair, entries in known.items()}


def _answered(hops: Trace) -> tuple[str, ...]:
    return tuple(hop for hop in hops if hop is not None)


def _expected(known: PathEntry | None, hops: Trace) -> Iterable[str]:
    """The known hop at the first missing answer, if the trace took the known path until there.

    A path that was learnt by counters is known not to answer, so a missing answer means nothing there.
    """
    first = hops.index(None)
    if known is not None and known.how == PROBES and first < len(known.hops) and known.hops[:first] == hops[:first]:
        return (known.hops[first],)
    return ()
