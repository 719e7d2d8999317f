"""Which ways between two leaves a pair of NICs cannot reach with the source ports that were probed."""

from collections import defaultdict

import msgspec

from c4bench.c4p.atlas import Atlas
from c4bench.c4p.disjoint_sets import DisjointSets


class Gap(msgspec.Struct, frozen=True, order=True):
    """A pair whose ports do not lead over all known ways: `missing` are those, by the links between their leaves."""

    source: str
    destination: str
    reached: int
    missing: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Which ways are missing, and what is still possible."""
        ways = "; ".join(" ".join(way) for way in self.missing)
        return (
            f"{self.source} > {self.destination}: the probed source ports reach {self.reached} of "
            f"{self.reached + len(self.missing)} ways, none leads over {ways}; "
            f"up to {self.reached} QPs of a connection can be kept apart; probe more source ports"
        )


def gaps(atlas: Atlas) -> tuple[Gap, ...]:
    """Every pair that reaches fewer ways than are known from pairs between the same two leaves.

    Pairs are between the same leaves when any of their ways have the same links between first and last hop.
    """
    inner = {pair: {path.hops[1:-1] for path in atlas.paths(*pair)} - {()} for pair in atlas.pairs}
    between: DisjointSets[tuple[str, ...]] = DisjointSets()
    for ways in filter(None, inner.values()):
        between.join(sorted(ways))
    known: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for ways in filter(None, inner.values()):
        known[between.root(min(ways))] |= ways
    missing = {pair: known[between.root(min(ways))] - ways for pair, ways in inner.items() if ways}
    return tuple(
        sorted(Gap(*pair, len(inner[pair]), tuple(sorted(lacking))) for pair, lacking in missing.items() if lacking)
    )
