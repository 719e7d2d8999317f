"""What a search knows of all paths between leaves, by the pairs of NICs at them. Pure.

Which of the known paths a source port takes, by as few answers as that needs. Pure. Where all paths between two leaves
are known, some switches of a path tell the others. An address names a link, so a switch far away shows by which way
packets came.

When all paths between two leaves are known: the multipath detection algorithm. Pure. The paths between two leaves are
complete if k of them were found by so many traces that one more would have been found too (Veitch et al., "Failure
Control in Multipath Route Tracing", INFOCOM 2009, section II).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import InnerPath, Pair, Probe
from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.c4p.knowledge.path_changes import Traced, sample_size
from c4bench.c4p.knowledge.path_knowledge import switches_on

# The addresses of a path's switches that are known, by their position, counted from 0.
Answers = Mapping[int, str]


class PairSearch(msgspec.Struct):
    """The search for one pair's paths: the ports not traced yet, and the switches found so far by port and position.

    `switches` is how many there are on a path, 0 if that is not known. Ports `ahead` are asked about first. The paths
    of ports in `needed` are wanted whatever they are. Those of `matched` ports are the only known ones that fit some of
    their switches; `skipped` are ports that take a path that is known already.
    """

    switches: int
    untraced: list[int]
    needed: frozenset[int] = frozenset()
    ahead: frozenset[int] = frozenset()
    answers: dict[int, dict[int, str]] = {}
    matched: set[int] = set()
    skipped: set[int] = set()
    returned: set[int] = set()
    done: bool = False

    def open_further(self, count: int) -> None:
        """Begin to trace ports until there are `count` of them, as far as there are more."""
        while self.untraced and len(self.open_ports()) < count:
            self.answers[self.untraced.pop(0)] = {}

    def open_ports(self) -> list[int]:
        """The ports whose path is not known to its end."""
        return [port for port, found in self.answers.items() if port not in self.skipped and not self._ended(found)]

    def complete(self) -> dict[int, tuple[str, ...]]:
        """The ports whose path is known to its end."""
        return {port: leading(found) for port, found in self.answers.items() if found and self._ended(found)}

    def random(self, port: int) -> bool:
        """Whether a port counts as a random one: not if it is asked because its path was known before."""
        return port in self.needed or port not in self.ahead

    def match(self, port: int, path: tuple[str, ...]) -> None:
        """Take a known path for that of a port, since no other fits its answers."""
        self.answers[port] = dict(enumerate(path))
        self.matched.add(port)

    @property
    def traced(self) -> Traced:
        """What shows whether there are other paths: ports chosen at random that are neither matched nor skipped."""
        complete = self.complete().keys() - self.matched
        ports = [port for port in self.answers if self.random(port)]
        return Traced(len(ports), sum(1 for _ in itertools.takewhile(complete.__contains__, ports)))

    def _ended(self, found: Answers) -> bool:
        return bool(self.switches) and len(found) == self.switches


def leading(answers: Answers) -> tuple[str, ...]:
    """The switches of a path up to the first one that is not known."""
    return tuple(itertools.takewhile(bool, (answers.get(position, "") for position in range(len(answers)))))


# The switches of a path, by their addresses.
Switches = tuple[str, ...]


def fitting(paths: Iterable[Switches], answers: Answers) -> list[Switches]:
    """The paths that have these switches."""
    return [path for path in paths if all(path[position] == address for position, address in answers.items())]


def best_positions(paths: Sequence[Switches], answers: Answers) -> list[int]:
    """The positions whose switch tells these paths apart, those that leave the fewest first.

    Of equals the nearest one is first.
    """
    distinct = {position: len({path[position] for path in paths}) for position in range(len(paths[0]))}
    telling = [position for position, count in distinct.items() if count > 1 and position not in answers]
    return sorted(telling, key=lambda position: -distinct[position])


def is_new(paths: Iterable[Switches], found: Collection[Switches]) -> bool:
    """Whether one of these paths has not been found yet."""
    return any(path not in found for path in paths)


# The probability that there is one more path than those that were found.
_MISSED = 0.01


class FoundPaths(NamedTuple):
    """The paths found between two leaves, without the links of NICs; `all_found` if there are no more."""

    inner: frozenset[InnerPath]
    all_found: bool


def found_paths(
    searches: Mapping[Pair, PairSearch], leaf: DisjointSets[str], proven: Collection[frozenset[InnerPath]] = ()
) -> dict[Pair, FoundPaths]:
    """The paths found between the two leaves of each pair, by all pairs between these leaves together.

    NICs of one set of `leaf` are at one leaf. Pairs that share a path are between the same leaves too. That is no
    chance, so such a trace shows nothing about other paths: it counts once. Sets of paths that were `proven` to be all
    stay so when further pairs are searched.
    """
    inner = {pair: {hops[1:] for hops in search.complete().values()} - {()} for pair, search in searches.items()}
    ends = {(source, destination): (leaf.root(source), leaf.root(destination)) for source, destination in searches}
    together: DisjointSets[tuple[str, str]] = DisjointSets()
    by_path: dict[InnerPath, set[tuple[str, str]]] = defaultdict(set)
    for pair, paths in inner.items():
        for path in paths:
            by_path[path].add(ends[pair])
    for sharing in by_path.values():
        together.join(sorted(sharing))
    members: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair, leaves in ends.items():
        members[together.root(leaves)].append(pair)
    found: dict[Pair, FoundPaths] = {}
    for pairs in members.values():
        if known := frozenset(path for pair in pairs for path in inner[pair]):
            joined = len({ends[pair] for pair in pairs if inner[pair]}) - 1
            traces = sample_size([searches[pair].traced for pair in pairs]) - joined
            all_found = known in proven or enough_traces(len(known), traces)
            found |= dict.fromkeys(pairs, FoundPaths(known, all_found))
    return found


def enough_traces(paths: int, traces: int) -> bool:
    """Whether one more path than these would have been found by so many traces, with a probability of 0.99."""
    return bool((paths + 1) * (paths / (paths + 1)) ** traces <= _MISSED)


class LeafPaths:
    """The paths found between leaves, and the switches that NICs send to first.

    NICs of one set of `leaf` are at one leaf.
    """

    def __init__(self, links: NicLinks) -> None:
        self.leaf: DisjointSets[str] = DisjointSets()
        self._links = links
        self._found: dict[Pair, FoundPaths] = {}
        # Sets of paths that were all.
        self._proven: set[frozenset[InnerPath]] = set()
        self._first_hop: dict[str, str] = {}
        # By NIC and second switch, the first one: the leaf that the link between them comes from.
        self._leaf_before: dict[tuple[str, str], str] = {}

    def first_hop(self, nic: str) -> str:
        """The first switch of a NIC with one cable; "" if it is not known."""
        return self._first_hop.get(nic, "")

    def forget(self) -> None:
        """The fabric has changed: no paths are known."""
        self._proven.clear()
        self._leaf_before.clear()

    def note_answers(self, nic: str, answers: Answers) -> None:
        """Note the first switches of a path of this NIC, if they are known."""
        if 0 in answers and self._links.cables(nic) == 1:
            self._first_hop[nic] = answers[0]
        if 0 in answers and 1 in answers:
            self._leaf_before[nic, answers[1]] = answers[0]

    def update(self, searches: Mapping[Pair, PairSearch]) -> None:
        """Take what these searches have found."""
        self._found = found_paths(searches, self.leaf, self._proven)
        self._proven |= {found.inner for found in self._found.values() if found.all_found}

    def all_reached(self, pair: Pair, search: PairSearch) -> bool:
        """Whether the pair has a source port for every path between its leaves.

        At one leaf, a NIC has as many paths as cables.
        """
        paths = set(search.complete().values())
        if any(len(hops) == 1 for hops in paths) and len(paths) >= self._links.cables(pair[0]):
            return True
        found = self._found.get(pair)
        return found is not None and found.all_found and found.inner == {hops[1:] for hops in paths}

    def whole_paths(self, pair: Pair, switches: int) -> list[Switches]:
        """All paths of a pair that has so many switches on each; none if they are not all known."""
        found = self._found.get(pair)
        if not found or not found.all_found:
            return []
        one_cable = self._links.cables(pair[0]) == 1
        paths: list[Switches] = []
        for inner in sorted(found.inner):
            first = self.first_hop(pair[0]) if one_cable else self._leaf_before.get((pair[0], inner[0]))
            if not first or len(inner) + 1 != switches:
                return []
            paths.append((first, *inner))
        return paths


# The order in which source ports are asked: the first port of each pair, then the second.
Place = tuple[int, Pair]


class OnwardLinks:
    """The next link after each switch towards each leaf, where there is only one.

    `asked` are paths of which every switch was asked, NICs of one set of `leaf` are at one leaf, and links of `avoided`
    carry nothing. Paths over a switch without answers left stay unknown, so those found first are no random ones: of
    `searches` that go on, a switch's traces count up to the first one whose next link is not known.
    """

    def __init__(
        self,
        asked: Mapping[Probe, tuple[str, ...]],
        searches: Mapping[Pair, PairSearch],
        leaf: DisjointSets[str],
        avoided: Collection[str],
    ) -> None:
        self._leaf, self._switch = leaf, switches_on(asked.values())
        places = _places(searches)
        stops = self._stops(searches, places)
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        hops: dict[tuple[str, str], set[str]] = defaultdict(set)
        for probe, path in asked.items():
            for hop, following in itertools.pairwise(path):
                key = self._key(hop, probe[1])
                # Those of searches that have ended come before all.
                if key in stops and probe in places and places[probe] > stops[key]:
                    continue
                counts[key][following] += 1
                hops[key].add(hop)
        # Hops are known to be of one switch by the same next link, which therefore shows nothing once for each.
        self._only = {
            key: following
            for key, onward in counts.items()
            for following, traces in onward.items()
            if len(onward) == 1 and enough_traces(1, traces - len(hops[key]) + 1) and following not in avoided
        }

    def _stops(
        self, searches: Mapping[Pair, PairSearch], places: Mapping[Probe, Place]
    ) -> dict[tuple[str, str], Place]:
        """The place of the first trace that ends at each switch, on its way to each leaf."""
        stops: dict[tuple[str, str], Place] = {}
        for (source, destination, port), place in places.items():
            search = searches[source, destination]
            known = leading(search.answers[port])
            if known and len(known) < search.switches:
                key = self._key(known[-1], destination)
                stops[key] = min(place, stops.get(key, place))
        return stops

    def after(self, hop: str, destination: str) -> str:
        """The link by which packets that have crossed `hop` go on towards a NIC; "" if there may be several."""
        return self._only.get(self._key(hop, destination), "")

    def _key(self, hop: str, destination: str) -> tuple[str, str]:
        return self._switch.root(hop), self._leaf.root(destination)


def _places(searches: Mapping[Pair, PairSearch]) -> dict[Probe, Place]:
    """The places of all random source ports that are or were traced."""
    return {
        (*pair, port): (number, pair)
        for pair, search in searches.items()
        for number, port in enumerate(filter(search.random, search.answers))
    }
