"""The double binary tree: an all-reduce of two halves over two trees, in one of which a rank has no children.

Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL's trees. Each
half is reduced towards its tree's root and sent back from there, in chunks. A tree joins hosts; the ranks of a host are
a chain, whose first rank is the one that sends to other hosts.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from c4bench.collective.schedule import Gate, Plan, Receive, Send

# The parent of each rank in a tree; that of the root is itself.
Parents = tuple[int, ...]
# Into how many chunks a half is cut at least, if these are no shorter than a packet: a chunk's way to the root and back
# is short beside all of them then.
CHUNKS = 64


def two_trees(count: int) -> tuple[Parents, Parents]:
    """Two binary trees over `count` nodes: every other node is a leaf, of the first tree or of the second.

    With an even count the second tree is the first one mirrored, with an odd one it is shifted by a node.
    """
    first = [_parent(node, count) for node in range(count)]
    if count % 2 == 0:
        return tuple(first), tuple(count - 1 - first[count - 1 - node] for node in range(count))
    return tuple(first), tuple((first[(node - 1) % count] + 1) % count for node in range(count))


def _parent(node: int, count: int) -> int:
    """A node's parent in an in-order tree: a node's lowest bit says how far above the leaves, of odd numbers, it is."""
    bit = node & -node
    if not node:
        return 0
    up = (node ^ bit) | (bit << 1)
    return up if up < count else node ^ bit


def over_chains(chains: Sequence[Sequence[int]]) -> tuple[Parents, Parents]:
    """The two trees over ranks: each node is a chain, by whose first rank it is joined to others."""
    place = {rank: (node, at) for node, chain in enumerate(chains) for at, rank in enumerate(chain)}

    def parent(tree: Parents, rank: int) -> int:
        node, at = place[rank]
        return chains[node][at - 1] if at else chains[tree[node]][0]

    first, second = (tuple(parent(tree, rank) for rank in range(len(place))) for tree in two_trees(len(chains)))
    return first, second


def neighbours(trees: Sequence[Parents], rank: int) -> list[int]:
    """The ranks that this one has for its parent or its child in any tree, in order."""
    near = {tree[rank] for tree in trees} | {child for tree in trees for child in _children(tree)[rank]}
    return sorted(near - {rank})


class _Crossing(NamedTuple):
    """A message between a rank and its parent, in the order in which those of one connection are sent.

    `slot` counts chunks, and hops of a chunk on its way to the root and back. A message depends on those of earlier
    slots only, and so do messages that wait for one of another tree on the same connection: there is no deadlock.
    """

    slot: int
    tree: int
    chunk: int
    down: bool


@lru_cache(maxsize=256)
def all_reduce(rank: int, trees: tuple[Parents, ...], chunks: int) -> Plan:
    """Each tree reduces the segment of its number. The values of children are added in a fixed order."""
    streams, receives = [], list[Receive]()
    for peer in neighbours(trees, rank):
        there = _crossings(rank, peer, trees, chunks)
        streams.append(tuple(_send(rank, peer, trees, crossing) for crossing in there))
        receives += [_receive(rank, peer, trees, crossing) for crossing in _crossings(peer, rank, trees, chunks)]
    return Plan(tuple(streams), tuple(receives))


def _crossings(source: int, destination: int, trees: Sequence[Parents], chunks: int) -> list[_Crossing]:
    found = []
    for number, tree in enumerate(trees):
        if tree[source] == destination:
            first = _heights(tree)[source]
            found += [_Crossing(first + chunk, number, chunk, down=False) for chunk in range(chunks)]
        if tree[destination] == source:
            first = max(_heights(tree)) + sum(1 for _ in _ancestors(tree, source))
            found += [_Crossing(first + chunk, number, chunk, down=True) for chunk in range(chunks)]
    return sorted(found)


def _send(rank: int, peer: int, trees: Sequence[Parents], crossing: _Crossing) -> Send:
    tree = trees[crossing.tree]
    children = _children(tree)[rank]
    gate: Gate = (crossing.tree,)
    if children and (not crossing.down or tree[rank] == rank):
        gate = (crossing.tree, len(children) - 1)
    # The leaves set the pace. Ahead of what has come back by more than a chunk's way they would fill the links of ranks
    # that must pass on both directions of both trees, and one direction would be finished early.
    needs = crossing.chunk + 1 if children else max(0, crossing.chunk + 1 - 2 * max(_heights(tree)))
    return Send(peer, crossing.tree, crossing.chunk, not crossing.down, needs, gate)


def _receive(rank: int, peer: int, trees: Sequence[Parents], crossing: _Crossing) -> Receive:
    number, chunk, tree = crossing.tree, crossing.chunk, trees[crossing.tree]
    if crossing.down:
        return Receive(peer, number, chunk, reduce=False, final=False, gate=(number,))
    children = _children(tree)[rank]
    place = children.index(peer)
    final = tree[rank] == rank and place == len(children) - 1
    after, needs = (number, place - 1), chunk + 1 if place else 0
    return Receive(peer, number, chunk, reduce=True, final=final, gate=(number, place), after=after, needs=needs)


@lru_cache(maxsize=32)
def _children(tree: Parents) -> list[list[int]]:
    """Each rank's children, those with the lowest trees first: nothing that comes early waits for what comes late."""
    heights = _heights(tree)
    children: list[list[int]] = [[] for _ in tree]
    for rank in sorted(range(len(tree)), key=lambda rank: (heights[rank], rank)):
        if tree[rank] != rank:
            children[tree[rank]].append(rank)
    return children


@lru_cache(maxsize=32)
def _heights(tree: Parents) -> list[int]:
    """How many hops each rank is above the furthest rank below it."""
    heights = [0] * len(tree)
    for rank in range(len(tree)):
        for hops, above in enumerate(_ancestors(tree, rank), 1):
            heights[above] = max(heights[above], hops)
    return heights


def _ancestors(tree: Parents, rank: int) -> Iterator[int]:
    while tree[rank] != rank:
        rank = tree[rank]
        yield rank
