"""What a search that has not ended shows of the hops that its paths do not cross. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from c4bench.c4p.knowledge.leaf_groups import Pair


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
