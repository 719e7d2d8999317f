"""In which order ranks form a ring when they have lost different NICs (R2CCL, arXiv 2512.25059: re-ranking).

Between two neighbours goes only what both have NICs for, and the whole ring goes at the pace of its poorest pair. A
rank that has lost nothing shares with each neighbour all that this has left: it is a bridge between two that have lost
different NICs.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise

Lost = Sequence[frozenset[int]]


def poorest(order: Sequence[int], lost: Lost, weights: Sequence[int]) -> int:
    """What the poorest pair of neighbours of a ring shares; all `weights` together where nobody has lost anything."""
    return min(_shared(one, other, lost, weights) for one, other in pairwise((*order, order[0])))


def ring_order(lost: Lost, weights: Sequence[int]) -> tuple[int, ...]:
    """The order of a ring whose poorest pair shares much; `lost` are each rank's channels, `weights` what these carry.

    It is the best there is where as many ranks have lost nothing as have lost anything, and the plain one where none is
    found that is better. Ranks that know the same find the same.
    """
    plain = tuple(range(len(lost)))
    bridges = [rank for rank in plain if not lost[rank]]
    ring: list[int] = []
    for line in _joined([rank for rank in plain if lost[rank]], max(1, len(bridges)), lost, weights):
        ring += line
        ring += bridges[:1]
        del bridges[:1]
    found = _from_first(ring + bridges)
    return found if poorest(found, lost, weights) > poorest(plain, lost, weights) else plain


def _shared(one: int, other: int, lost: Lost, weights: Sequence[int]) -> int:
    gone = lost[one] | lost[other]
    return sum(weight for channel, weight in enumerate(weights) if channel not in gone)


def _joined(ranks: Sequence[int], most: int, lost: Lost, weights: Sequence[int]) -> list[list[int]]:
    """Lines of ranks, `most` of them: those are joined first that share the most."""
    line_of = {rank: [rank] for rank in ranks}
    count = len(ranks)
    for one, other in sorted(combinations(ranks, 2), key=lambda pair: -_shared(pair[0], pair[1], lost, weights)):
        first, second = line_of[one], line_of[other]
        ends = one in (first[0], first[-1]) and other in (second[0], second[-1])
        if count > most and first is not second and ends:
            _join(first, second, one, other)
            line_of |= dict.fromkeys(second, first)
            count -= 1
    return list({id(line): line for line in line_of.values()}.values())


def _join(first: list[int], second: list[int], one: int, other: int) -> None:
    """Append a line to another, so that these ends of theirs meet."""
    if first[-1] != one:
        first.reverse()
    first += second if second[0] == other else second[::-1]


def _from_first(ring: Sequence[int]) -> tuple[int, ...]:
    """The same ring from its lowest rank on, towards the lower of that one's neighbours."""
    at = ring.index(min(ring))
    turned = (*ring[at:], *ring[:at])
    return turned if turned[1] <= turned[-1] else (turned[0], *reversed(turned[1:]))
