"""Disjoint sets, also called union-find (Tarjan, JACM 22(2), 1975)."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Disjoint sets that can be merged; an item that was never joined is a set by itself."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def root(self, item: T) -> T:
        """The representative of an item's set."""
        parent = self._parent
        while (above := parent.get(item, item)) != item:
            parent[item] = item = parent.get(above, above)
        return item

    def join(self, items: Iterable[T]) -> None:
        """Merge the sets of these items."""
        first, *others = items
        for item in others:
            self._parent[self.root(item)] = self.root(first)
