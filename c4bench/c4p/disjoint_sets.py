"""Disjoint sets: what belongs together, from pairs that do (Tarjan, JACM 22(2), 1975)."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Sets that only ever merge; what was never joined is alone."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def root(self, item: T) -> T:
        """The same for all items of a set."""
        parent = self._parent
        while (above := parent.get(item, item)) != item:
            parent[item] = item = parent.get(above, above)
        return item

    def join(self, items: Iterable[T]) -> None:
        """Make one set of these."""
        first, *others = items
        for item in others:
            self._parent[self.root(item)] = self.root(first)
