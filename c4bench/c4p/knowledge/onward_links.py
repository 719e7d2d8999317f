"""The links by which traffic to a leaf always goes on from a switch, as traces have shown. Pure."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.atlas import Probe
from c4bench.c4p.knowledge.leaf_groups import Pair
from c4bench.c4p.knowledge.multipath_detection import enough_traces
from c4bench.c4p.knowledge.pair_search import PairSearch, leading

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
        self._leaf, self._switch = leaf, _switches(asked.values())
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


def _switches(paths: Collection[tuple[str, ...]]) -> DisjointSets[str]:
    """The hops that lead to one switch: those directly before the same link."""
    before: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for hop, following in itertools.pairwise(path):
            before[following].add(hop)
    switches: DisjointSets[str] = DisjointSets()
    for together in before.values():
        switches.join(sorted(together))
    return switches


def _places(searches: Mapping[Pair, PairSearch]) -> dict[Probe, Place]:
    """The places of all random source ports that are or were traced."""
    return {
        (*pair, port): (number, pair)
        for pair, search in searches.items()
        for number, port in enumerate(filter(search.random, search.answers))
    }
