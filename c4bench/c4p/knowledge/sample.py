"""What a search that has not ended shows of the hops that its paths do not cross. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from c4bench.c4p.knowledge.leaf_groups import Pair


class Sample(NamedTuple):
    """What a search shows of the hops that its paths do not cross.

    Switches have answers left for some NICs only, so paths over others are found first: how many paths of each pair are
    a `random` sample, the hops that were `seen`, also on paths not known to their end, and whether a hop `can_answer` a
    NIC.
    """

    random: Mapping[Pair, int]
    seen: Collection[str]
    can_answer: Callable[[str, str], bool]

    def size(self, pair: Pair, hop: str, found: int) -> int:
        """How many of the `found` paths of a pair are a random sample of those that may cross this hop."""
        return found if self.can_answer(pair[0], hop) else self.random.get(pair, 0)
