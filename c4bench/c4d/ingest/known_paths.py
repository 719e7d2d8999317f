"""The links of each path, as far as C4P has learnt them, and the switches they lead to."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from c4bench.model.recording import LearntPath

# The far addresses of a path's links, by its source, destination and source port.
PathLinks = Mapping[tuple[str, str, int], tuple[str, ...]]


class KnownPaths(dict[tuple[str, str, int], tuple[str, ...]]):
    """The links by path; `learnt` changes whenever something has been learnt."""

    def __init__(self, paths: PathLinks | None = None) -> None:
        super().__init__(paths or {})
        self.learnt = 0

    def learn(self, paths: Iterable[LearntPath]) -> None:
        """Add the links of these paths."""
        self.update((path[:3], path[3]) for path in paths)
        self.learnt += 1


class Switch(NamedTuple):
    """The addresses that a switch answers by, and what is cabled to it."""

    addresses: frozenset[str]
    cabled: frozenset[str]


def switches(before: Mapping[str, Collection[str]]) -> list[Switch]:
    """The switches that ends of cables lead from, by the addresses that answered last `before` each: all of one."""
    known: list[Switch] = []
    for end, addresses in sorted(before.items()):
        joined = [switch for switch in known if not switch.addresses.isdisjoint(addresses)]
        merged = Switch(
            frozenset(addresses).union(*(switch.addresses for switch in joined)),
            frozenset({end}).union(*(switch.cabled for switch in joined)),
        )
        known = [*(switch for switch in known if switch not in joined), merged]
    return known
