"""Finds the paths between NICs with few probes: which probe to send next, and when enough is known. Pure.

A switch answers few probes: Linux allows each prober a burst of six, then one a second. So a search asks for nothing
that it can know. A NIC with one cable has the same first switch on all paths; a bond chooses one for each source port.
Answers are kept from round to round. Where traffic that crossed a link towards a leaf always went on over the same next
link, that is inferred. An address names a link, so a switch far away shows by which way packets came: once all paths
between two leaves are known, any switch may be asked that tells them apart, and source ports that can take only paths
found before are skipped.

The paths between two leaves are complete if k of them were found by so many traces that one more would have been found
too (the multipath detection algorithm: Veitch et al., "Failure Control in Multipath Route Tracing", INFOCOM 2009,
section II).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import msgspec

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import InnerPath, Pair, Probe, Question
from c4bench.c4p.knowledge.nic_links import NicLinks, is_port
from c4bench.c4p.knowledge.path_knowledge import PathSample, Trace, Traced, sample_size, switches_on

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
        self._only: dict[tuple[str, str], str] = {}
        for key, onward in counts.items():
            following, traces = next(iter(onward.items()))
            # Hops are known to be of one switch by the same next link, which therefore shows nothing once for each.
            enough = enough_traces(1, traces - len(hops[key]) + 1)
            if len(onward) == 1 and enough and following not in avoided:
                self._only[key] = following

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


class AskedPaths:
    """Complete paths of which every switch was asked, and those that a whole search has found.

    What a search finds counts after the next change only once the search has ended with no link missing: until then
    paths may have changed from one answer to the next, and the paths found are those over switches that answered first.
    """

    def __init__(self) -> None:
        self._lasting: dict[Probe, tuple[str, ...]] = {}
        self._passing: dict[Probe, tuple[str, ...]] = {}

    @property
    def paths(self) -> Mapping[Probe, tuple[str, ...]]:
        """The switches on each path. Of a source port the first found: where two ways were there may be two again."""
        return self._passing | self._lasting

    def note(self, probe: Probe, path: tuple[str, ...]) -> None:
        """Note a complete path that a search has found."""
        self._passing.setdefault(probe, path)

    def forget(self) -> None:
        """The fabric has changed."""
        self._passing.clear()

    def keep(self, found: Mapping[Probe, tuple[str, ...]]) -> None:
        """The search has ended: nothing changed meanwhile, no link is missing, and it `found` these paths.

        They count though not all of their switches were asked, as they are among all paths of their pairs.
        """
        self._lasting = {**found, **self._passing, **self._lasting}
        self.forget()


# Source ports of a pair that are traced at the same time.
_OPEN_PORTS = 8
# Rounds without any answer after which a NIC's pairs are given up.
_FRUITLESS_ROUNDS = 3
# Seconds after which a NIC that met silence asks again: Linux answers a prober once a second.
_REST_S = 1.1
# Switches on the longest path: two sites of three tiers have eight.
MAX_SWITCHES = 10


class PathSearch:
    """A search for the paths of pairs of NICs, in rounds.

    `begin_round`; then for every NIC ask `questions` and `record` their answers until there are none; then `end_round`.
    A NIC to which a switch was silent does not take part in the next rounds for a time. Times are seconds on the
    caller's clock.
    """

    def __init__(self, source_ports: Sequence[int], links: NicLinks) -> None:
        self._source_ports, self._links = tuple(source_ports), links
        self._pairs: dict[Pair, PairSearch] = {}
        # Pairs whose search has ended before all their paths were found.
        self.given_up: set[Pair] = set()
        self._asked = AskedPaths()
        self._between = LeafPaths(links)
        self._onward = OnwardLinks({}, {}, self._between.leaf, ())
        # The whole paths of pairs for which all are known.
        self._known: dict[Pair, list[Switches]] = {}
        self._avoided: frozenset[str] = frozenset()
        self._asking: set[str] = set()
        self._silent: set[Question] = set()
        self._answered: set[str] = set()
        self._fruitless: Counter[str] = Counter()
        self._rests_until_s: dict[str, float] = {}
        # Rounds since nothing found before counts, and how often that was.
        self.rounds = self._changes = 0

    @property
    def switches(self) -> dict[Pair, int]:
        """The number of switches on the paths of each pair that was searched, 0 where it is not known."""
        return {pair: search.switches for pair, search in self._pairs.items()}

    @property
    def open_pairs(self) -> tuple[Pair, ...]:
        """The pairs for which there is more to ask."""
        return tuple(pair for pair, search in self._pairs.items() if not search.done)

    def sample(self, can_answer: Callable[[str, str], bool]) -> PathSample:
        """What has been found so far; `can_answer(NIC, hop)` is whether the hop's switch has an answer left for it.

        No switch answers for a bond's port. The switch before it does, so the port is missed only by a random sample.
        """
        traced = {pair: search.traced for pair, search in self._pairs.items()}
        answers = itertools.chain.from_iterable(search.answers.values() for search in self._pairs.values())
        seen = {hop for of_port in answers for hop in of_port.values()}
        return PathSample(traced, seen, lambda nic, hop: not is_port(hop) and can_answer(nic, hop))

    def ready(self, now_s: float) -> set[str]:
        """The NICs that have something to ask now."""
        nics = {source for source, _ in self.open_pairs}
        return {nic for nic in nics if self._rests_until_s.get(nic, now_s) <= now_s}

    def begin(
        self,
        switches: Mapping[Pair, int],
        first: Mapping[Pair, Iterable[int]] = MappingProxyType({}),
        likely: Mapping[Pair, Iterable[int]] = MappingProxyType({}),
        changed: Collection[str] | None = None,
    ) -> None:
        """Search for the paths of these pairs, with so many switches on each, 0 where that is not known.

        Ports of `first` are traced first, then those of `likely`, whose paths may differ, then all others. If the
        fabric has changed, `changed` are the links that carry nothing; no path that was found before counts then.
        """
        if changed is not None:
            self._avoided = frozenset(changed)
            switches = {pair: self._pairs[pair].switches for pair in self.open_pairs} | dict(switches)
            self._pairs.clear()
            self._between.forget()
            self._asked.forget()
            self.rounds, self._changes = 0, self._changes + 1
        for pair, count in switches.items():
            needed = tuple(first.get(pair, ()))
            ahead = (*needed, *likely.get(pair, ()))
            ports = list(dict.fromkeys([*ahead, *self._shuffled_ports(pair)]))
            self._pairs[pair] = PairSearch(count, ports, frozenset(needed), frozenset(ahead))
            if count == 1:
                self._between.leaf.join(pair)
            self.given_up.discard(pair)
            self._fruitless[pair[0]] = 0
            self._rests_until_s.pop(pair[0], None)
        self._between.update(self._pairs)

    def _shuffled_ports(self, pair: Pair) -> list[int]:
        """The source ports in another order for each pair, and after each change.

        A switch may hash only some fields of a packet. Traces of several pairs by the same port would then be one. And
        a sample that has missed a path, so that its ports seem to have changed, must not be drawn again.
        """
        order = f"{' '.join(pair)} {self._changes or ''}".rstrip()
        return sorted(self._source_ports, key=lambda port: crc32(f"{port} {order}".encode()))

    def begin_round(self, now_s: float) -> list[str]:
        """Open further ports of pairs that need them; return the NICs that take part in this round."""
        self.rounds += 1
        self._asking = self.ready(now_s)
        self._silent.clear()
        self._answered.clear()
        self._onward = OnwardLinks(self._asked.paths, self._pairs, self._between.leaf, self._avoided)
        self._known = {pair: self._between.whole_paths(pair, self._pairs[pair].switches) for pair in self.open_pairs}
        for pair in self.open_pairs:
            search = self._pairs[pair]
            search.open_further(1 if search.switches == 1 and self._links.cables(pair[0]) == 1 else _OPEN_PORTS)
        return sorted(self._asking)

    def questions(self, nic: str) -> list[Question]:
        """What to ask next of this NIC's paths; nothing when each is known or not answered in this round."""
        asked: list[tuple[int, Question]] = []
        for pair in (pair for pair in self.open_pairs if pair[0] == nic):
            search, place = self._pairs[pair], {port: number for number, port in enumerate(self._pairs[pair].answers)}
            for port in search.open_ports():
                asked += [(place[port], question) for question in self._next_questions(pair, search, port)]
        # All pairs in turn: it takes some ports of each to know the paths between two leaves.
        in_turn = [question for _, question in sorted(asked, key=lambda asking: asking[0])]
        ahead = [question for question in in_turn if question.source_port in self._pairs[question.pair].ahead]
        return self._useful(nic, ahead) or self._useful(nic, in_turn)

    def _next_questions(self, pair: Pair, search: PairSearch, port: int) -> list[Question]:
        """The next question about a port's path; none if it is known, or need not be."""
        answers = search.answers[port]
        possible = fitting(self._known.get(pair, ()), answers)
        if not possible:
            self._infer(pair, search, answers)
            position = len(leading(answers))
            return [Question(pair, port, position)] if position < (search.switches or MAX_SWITCHES) else []
        if len(possible) == 1:
            search.match(port, possible[0])
            return []
        if port not in search.needed and not is_new(possible, set(search.complete().values())):
            search.skipped.add(port)
            return []
        questions = (Question(pair, port, position) for position in best_positions(possible, answers))
        return [question for question in questions if question not in self._silent][:1]

    def _useful(self, nic: str, asked: Iterable[Question]) -> list[Question]:
        """The questions that were not asked in vain in this round; the first switch of a cable is asked once."""
        first_asked = any(self._at_first_switch(question) for question in self._silent if question.pair[0] == nic)
        useful: list[Question] = []
        for question in asked:
            at_first = self._at_first_switch(question)
            if question not in self._silent and not (at_first and first_asked):
                useful.append(question)
            first_asked |= at_first
        return useful

    def _at_first_switch(self, question: Question) -> bool:
        """Whether the answer will be the same for all paths of this NIC."""
        one_cable = self._links.cables(question.pair[0]) == 1
        return question.position == 0 and one_cable and bool(self._pairs[question.pair].switches)

    def record(self, question: Question, address: str) -> None:
        """Record the address that answered, "" if none did."""
        if not address:
            self._silent.add(question)
            return
        pair = question.pair
        self._answered.add(pair[0])
        answers = self._pairs[pair].answers[question.source_port]
        answers[question.position] = address
        self._between.note_answers(pair[0], answers)
        if self._pairs[pair].random(question.source_port) and len(answers) == self._pairs[pair].switches:
            self._asked.note((*pair, question.source_port), leading(answers))

    def open_ports(self) -> list[tuple[Pair, int]]:
        """The pairs and source ports that are being traced."""
        return [(pair, port) for pair in self.open_pairs for port in self._pairs[pair].open_ports()]

    def record_path(self, pair: Pair, source_port: int, hops: Sequence[str]) -> None:
        """Record the switches on the path of a source port as a whole; none if it could not be found."""
        if hops:
            search = self._pairs[pair]
            search.switches = max(search.switches, len(hops))
            search.answers[source_port] = dict(enumerate(hops))
            self._answered.add(pair[0])

    def port_to_count(self, counted: Collection[tuple[Pair, int]]) -> tuple[Pair, int] | None:
        """A source port that may take a new path, of a pair whose paths are all known; None if all were `counted`."""
        found = {pair: set(self._pairs[pair].complete().values()) for pair in self.open_pairs if self._known.get(pair)}
        for pair in sorted(found, key=lambda pair: len(found[pair])):
            search = self._pairs[pair]
            for port in search.open_ports():
                possible = fitting(self._known[pair], search.answers[port])
                if (pair, port) not in counted and (port in search.needed or is_new(possible, found[pair])):
                    return pair, port
        return None

    def record_links(self, pair: Pair, source_port: int, links: Collection[str]) -> bool:
        """Record the path of a source port that is traced, by the links that it crosses; return whether it has one."""
        search = self._pairs[pair]
        possible = fitting(self._known.get(pair, ()), search.answers.get(source_port, {}))
        paths = [path for path in possible if set(path) == set(links)]
        if paths and source_port in search.answers:
            search.match(source_port, paths[0])
        return bool(paths)

    def give_up(self, nic: str) -> None:
        """End the search for this NIC's paths: its host cannot be reached."""
        for pair in self.open_pairs:
            if pair[0] == nic:
                self._pairs[pair].done = True
                self.given_up.add(pair)

    def end_round(self, now_s: float) -> dict[Probe, Trace]:
        """End the round; return the paths that became known in it.

        A pair that is given up without any path has one trace with a missing answer.
        """
        traces: dict[Probe, Trace] = {}
        self._between.update(self._pairs)
        complete = {pair for pair in self.open_pairs if self._between.all_reached(pair, self._pairs[pair])}
        for nic in self._asking:
            self._fruitless[nic] = 0 if nic in self._answered else self._fruitless[nic] + 1
        fruitless = {nic for nic in self._asking if self._fruitless[nic] >= _FRUITLESS_ROUNDS}
        self._rests_until_s |= {question.pair[0]: now_s + _REST_S for question in self._silent}
        for pair in self.open_pairs:
            search = self._pairs[pair]
            given_up = pair[0] in fruitless and not self._measure_length(pair, search)
            exhausted = not search.untraced and not search.open_ports()
            search.done = pair in complete or given_up or exhausted
            if given_up and pair not in complete:
                self.given_up.add(pair)
            traces |= self._new_traces(pair, search)
        if not self.open_pairs and not self._avoided:
            ports = ((pair, search.complete().items()) for pair, search in self._pairs.items())
            self._asked.keep({(*pair, port): hops for pair, found in ports for port, hops in found})
        return traces

    def _new_traces(self, pair: Pair, search: PairSearch) -> dict[Probe, Trace]:
        found = search.complete()
        if search.done and not found:
            unknown = None, self._links.last_hop(pair[1], None)
            return {(*pair, port): (*leading(answers), *unknown) for port, answers in [*search.answers.items()][:1]}
        new: dict[Probe, Trace] = {
            (*pair, port): (*found[port], self._links.last_hop(pair[1], found[port][-1]))
            for port in found.keys() - search.returned
        }
        search.returned.update(found)
        return new

    def _measure_length(self, pair: Pair, search: PairSearch) -> bool:
        """Take those that answered for all switches of a path whose destination does not answer, and go on."""
        if search.switches:
            return False
        search.switches = max(map(len, search.answers.values()), default=0)
        self._fruitless[pair[0]] = 0
        return bool(search.switches)

    def _infer(self, pair: Pair, search: PairSearch, answers: dict[int, str]) -> None:
        """Add the next switches of a path that need not be asked."""
        if not answers and search.switches and (first := self._between.first_hop(pair[0])):
            answers[0] = first
        known = leading(answers)
        while 0 < len(known) < search.switches and (following := self._onward.after(known[-1], pair[1])):
            answers[len(known)] = following
            known = leading(answers)
