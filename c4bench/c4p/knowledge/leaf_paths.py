"""What a search knows of all paths between leaves, by the pairs of NICs at them. Pure."""

from collections.abc import Mapping

from c4bench.c4p.disjoint_sets import DisjointSets
from c4bench.c4p.knowledge.leaf_groups import InnerPath, Pair
from c4bench.c4p.knowledge.multipath_detection import FoundPaths, found_paths
from c4bench.c4p.knowledge.nic_links import NicLinks
from c4bench.c4p.knowledge.pair_search import Answers, PairSearch
from c4bench.c4p.knowledge.path_matching import Switches


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
