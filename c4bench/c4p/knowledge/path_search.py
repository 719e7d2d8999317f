"""Finds the paths between NICs with few probes: which probe to send next, and when enough is known. Pure.

A switch answers few probes: Linux allows each prober a burst of six, then one a second. So a search asks for nothing
that it can know. A NIC with one cable has the same first switch on all paths; a bond chooses one for each source port.
Answers are kept from round to round. Where traffic that crossed a link towards a leaf always went on over the same next
link, that is inferred.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Probe
from c4bench.c4p.knowledge.leaf_groups import InnerPath, Pair, leaf_groups
from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.c4p.knowledge.pair_search import PairSearch
from c4bench.c4p.knowledge.path_knowledge import Trace
from c4bench.c4p.knowledge.sample import Sample

# The probability that there is one more path than those that were found.
_MISSED = 0.01
# Source ports of a pair that are traced at the same time.
_OPEN_PORTS = 8
# Rounds without any answer after which a NIC's pairs are given up.
_FRUITLESS_ROUNDS = 3
# Seconds after which a NIC that met silence asks again: Linux answers a prober once a second.
_REST_S = 1.1
# Switches on the longest path: two sites of three tiers have eight.
MAX_SWITCHES = 10


class Question(NamedTuple):
    """A question: which is switch `position`, counted from 0, of this source port's path."""

    pair: Pair
    source_port: int
    position: int


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
        # Complete paths of which every switch was asked, also those of before the last change.
        self._asked: dict[Probe, tuple[str, ...]] = {}
        self._certain: dict[tuple[str, str], str] = {}
        self._leaf_of: DisjointSets[str] = DisjointSets()
        self._avoided: frozenset[str] = frozenset()
        self._first_hop: dict[str, str] = {}
        self._asking: set[str] = set()
        self._silent: set[Question] = set()
        self._answered: set[str] = set()
        self._fruitless: Counter[str] = Counter()
        self._rests_until_s: dict[str, float] = {}

    @property
    def open_pairs(self) -> tuple[Pair, ...]:
        """The pairs for which there is more to ask."""
        return tuple(pair for pair, search in self._pairs.items() if not search.done)

    def sample(self, can_answer: Callable[[str, str], bool]) -> Sample:
        """What has been found so far; `can_answer(NIC, hop)` is whether the hop's switch has an answer left for it."""
        random = {pair: search.sample_size() for pair, search in self._pairs.items()}
        seen = {hop for search in self._pairs.values() for hops in search.hops.values() for hop in hops}
        return Sample(random, seen, can_answer)

    def ready(self, now_s: float) -> set[str]:
        """The NICs that have something to ask now."""
        nics = {source for source, _ in self.open_pairs}
        return {nic for nic in nics if self._rests_until_s.get(nic, now_s) <= now_s}

    def begin(
        self,
        switches: Mapping[Pair, int],
        first: Mapping[Pair, Iterable[int]] = MappingProxyType({}),
        changed: Collection[str] | None = None,
    ) -> None:
        """Search for the paths of these pairs, with so many switches on each, 0 where that is not known.

        Ports of `first` are traced first. If the fabric has changed, `changed` are the links that carry nothing; no
        path that was found before counts then.
        """
        if changed is not None:
            self._avoided = frozenset(changed)
            switches = {pair: self._pairs[pair].switches for pair in self.open_pairs} | dict(switches)
            self._pairs.clear()
        for pair, count in switches.items():
            ports = list(dict.fromkeys([*first.get(pair, ()), *self._source_ports]))
            self._pairs[pair] = PairSearch(count, ports)
            self.given_up.discard(pair)
            self._fruitless[pair[0]] = 0
            self._rests_until_s.pop(pair[0], None)

    def begin_round(self, now_s: float) -> list[str]:
        """Open further ports of pairs that need them; return the NICs that take part in this round."""
        self._asking = self.ready(now_s)
        self._silent.clear()
        self._answered.clear()
        self._learn_certain()
        for pair in self.open_pairs:
            search = self._pairs[pair]
            wanted = 1 if search.switches == 1 and self._links.cables(pair[0]) == 1 else _OPEN_PORTS
            while search.untraced and len(search.open_ports()) < wanted:
                search.hops[search.untraced.pop(0)] = []
        return sorted(self._asking)

    def questions(self, nic: str) -> list[Question]:
        """What to ask next of this NIC's paths; nothing when each is known or not answered in this round."""
        asked: list[Question] = []
        for pair in self.open_pairs:
            if pair[0] != nic:
                continue
            search = self._pairs[pair]
            for port in search.open_ports():
                self._infer(pair, search, search.hops[port])
                question = Question(pair, port, len(search.hops[port]))
                if question.position < (search.switches or MAX_SWITCHES):
                    asked.append(question)
        return self._useful(nic, asked)

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
        hops = self._pairs[pair].hops[question.source_port]
        hops.append(address)
        if question.position == 0 and self._links.cables(pair[0]) == 1:
            self._first_hop[pair[0]] = address
        if len(hops) == self._pairs[pair].switches:
            self._asked[*pair, question.source_port] = tuple(hops)

    def open_ports(self) -> list[tuple[Pair, int]]:
        """The pairs and source ports that are being traced."""
        return [(pair, port) for pair in self.open_pairs for port in self._pairs[pair].open_ports()]

    def record_path(self, pair: Pair, source_port: int, hops: Sequence[str]) -> None:
        """Record the switches on the path of a source port as a whole; none if it could not be found."""
        if hops:
            search = self._pairs[pair]
            search.switches = max(search.switches, len(hops))
            search.hops[source_port] = list(hops)
            self._answered.add(pair[0])

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
        complete = self._complete_pairs()
        for nic in self._asking:
            self._fruitless[nic] = 0 if nic in self._answered else self._fruitless[nic] + 1
        self._rests_until_s |= {question.pair[0]: now_s + _REST_S for question in self._silent}
        for pair in self.open_pairs:
            search = self._pairs[pair]
            given_up = self._fruitless[pair[0]] >= _FRUITLESS_ROUNDS and not self._measure_length(pair, search)
            exhausted = not search.untraced and not search.open_ports()
            search.done = pair in complete or given_up or exhausted
            if given_up and pair not in complete:
                self.given_up.add(pair)
            traces |= self._new_traces(pair, search)
        return traces

    def _new_traces(self, pair: Pair, search: PairSearch) -> dict[Probe, Trace]:
        found = search.complete()
        if search.done and not found:
            unknown = None, self._links.last_hop(pair[1], None)
            return {(*pair, port): (*hops, *unknown) for port, hops in list(search.hops.items())[:1]}
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
        search.switches = max(map(len, search.hops.values()), default=0)
        self._fruitless[pair[0]] = 0
        return bool(search.switches)

    def _complete_pairs(self) -> set[Pair]:
        """The pairs whose paths are all known, by the multipath detection algorithm.

        The paths between two leaves are complete if k of them were found by so many traces that one more would have
        been found too (Veitch et al., INFOCOM 2009, section II). All pairs between these leaves need a port for each.
        At one leaf, a NIC has as many paths as cables.
        """
        inner: dict[Pair, list[InnerPath]] = {
            pair: [tuple(hops[1:]) for hops in search.complete().values()] for pair, search in self._pairs.items()
        }
        known: dict[InnerPath, set[InnerPath]] = defaultdict(set)
        traces: Counter[InnerPath] = Counter()
        group = leaf_groups(inner)
        for pair, representative in group.items():
            known[representative].update(inner[pair])
            traces[representative] += self._pairs[pair].sample_size()
        at_one_leaf = {
            pair
            for pair, paths in inner.items()
            if () in paths
            and len(set(map(tuple, self._pairs[pair].complete().values()))) >= self._links.cables(pair[0])
        }
        return at_one_leaf | {
            pair
            for pair, representative in group.items()
            if known[representative] == set(inner[pair])
            and enough_traces(len(known[representative]), traces[representative])
        }

    def _learn_certain(self) -> None:
        """Find the links after which traffic to a leaf always goes on over the same next link."""
        self._leaf_of = DisjointSets()
        for (_, destination, _), hops in self._asked.items():
            self._leaf_of.join((hops[-1], destination))
        onward: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for (_, destination, _), hops in self._asked.items():
            leaf = self._leaf_of.root(destination)
            for hop, following in itertools.pairwise(hops):
                onward[hop, leaf][following] += 1
        self._certain = {
            key: following
            for key, counts in onward.items()
            for following, count in counts.items()
            if len(counts) == 1 and enough_traces(1, count) and following not in self._avoided
        }

    def _infer(self, pair: Pair, search: PairSearch, hops: list[str]) -> None:
        """Add the next switches of a path that need not be asked."""
        if not hops and pair[0] in self._first_hop and search.switches:
            hops.append(self._first_hop[pair[0]])
        leaf = self._leaf_of.root(pair[1])
        while 0 < len(hops) < search.switches and (following := self._certain.get((hops[-1], leaf))):
            hops.append(following)


def enough_traces(paths: int, traces: int) -> bool:
    """Whether one more path than these would have been found by so many traces, with a probability of 0.99."""
    return bool((paths + 1) * (paths / (paths + 1)) ** traces <= _MISSED)
