"""Which switch of a stated graph each switch is that paths cross, if nobody can ask the switches.

NICs have names. A switch is the one whose stated cables agree best with those that are found to NICs and to switches
that have their names already. Several found switches are one where no path shows that their addresses are of one
switch; they get one name if its cables suffice for all of them. Switches with the same cables, such as the spines of a
leaf-spine fabric, can only be told apart by what differs: the best fit gets its name first, tier by tier.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

from c4bench.c4p.knowledge.cables import Cables
from c4bench.c4p.knowledge.cabling import Link


def identify(links: Iterable[Link], stated: Cables, switches: Collection[str], known: Iterable[str]) -> dict[str, str]:
    """The stated name of each node of `links`; a node for which no name fits keeps its own.

    `switches` are the stated names of switches; `known` are nodes that have their stated names already: NICs, and
    switches that were asked.
    """
    naming = _Naming(links, stated, frozenset(switches))
    for node in known:
        naming.give(node, node)
    while naming.name_neighbours():
        pass
    return naming.nodes | naming.names


class _Naming:
    """The names given so far. Cables count once in each direction, because paths may show only one."""

    def __init__(self, links: Iterable[Link], stated: Cables, switches: frozenset[str]) -> None:
        self._switches = switches
        self.names: dict[str, str] = {}
        # By node, its links to and from others: (other node, whether towards it).
        self._found: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        # By name, the stated ones, and those of the nodes that have the name to nodes with a name.
        self._stated: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        self._used: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        for link in links:
            self._found[link.source][link.target, True] += 1
            self._found[link.target][link.source, False] += 1
        for (a, b), count in stated.items():
            for near, far in ((a, b), (b, a)):
                self._stated[near].update({(far, True): count, (far, False): count})
        self.nodes = {node: node for node in self._found}

    def give(self, node: str, name: str) -> None:
        """Give a node its name."""
        self.names[node] = name
        for (far, towards), count in self._seen(node).items():
            self._used[name][far, towards] += count
            self._used[far][name, not towards] += count

    def _seen(self, node: str) -> Counter[tuple[str, bool]]:
        """The links of a node to nodes with a name, by that name."""
        seen: Counter[tuple[str, bool]] = Counter()
        for (far, towards), count in self._found[node].items():
            if far in self.names:
                seen[self.names[far], towards] += count
        return seen

    def name_neighbours(self) -> bool:
        """Name the nodes that agree best with named ones they are joined to; return whether there were any."""
        candidates = sorted(self._candidates())
        for agreement, *_, node, name in candidates:
            best = agreement == candidates[0][0]
            if best and node not in self.names and self._agreement(node, name) == -agreement:
                self.give(node, name)
        return bool(candidates)

    def _candidates(self) -> Iterator[tuple[int, int, bool, str, str]]:
        """Nodes without a name, each with names that it may have, and how badly each fits; a new name fits better."""
        given = set(self.names.values())
        for node in sorted(self._found.keys() - self.names.keys()):
            names = {name for far, _ in self._seen(node) for name, _ in self._stated[far]} & self._switches
            for name in names:
                if agreement := self._agreement(node, name):
                    yield -agreement, self._left(name, self._seen(node)), name in given, node, name

    def _agreement(self, node: str, name: str) -> int:
        """How many links of a node to named nodes are stated of the name and not used yet."""
        return (self._seen(node) & (self._stated[name] - self._used[name])).total()

    def _left(self, name: str, more: Counter[tuple[str, bool]]) -> int:
        """How many links of a name would be other than stated with `more` of them; those to names not given aside."""
        used = self._used[name] + more
        given = {far for far, _ in used}
        wanted = Counter({end: count for end, count in self._stated[name].items() if end[0] in given})
        return ((wanted - used) + (used - wanted)).total()
