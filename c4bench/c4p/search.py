"""Ejection chains: make the most loaded links lighter, moving as many flows as it takes and worsening none as loaded.

A flow moves off the link; where it lands, flows that no longer fit move on in turn, until everything lies below the
level of the link that was to be relieved, or the whole chain is undone. On a Clos with equal flows these chains are
the alternating paths by which Koenig's theorem balances a bipartite graph.
"""

import heapq
from collections.abc import Iterator, Sequence

from c4bench.c4p.problem import Choice, Way

_SLACK = 1e-9
_DEPTH = 12


class Board:
    """Flows on ways, with the load of every link kept current."""

    def __init__(
        self,
        loads: Sequence[float],
        weight: Sequence[float],
        demands: Sequence[float],
        choices: Sequence[Choice],
        chosen: Sequence[int],
    ) -> None:
        self.loads = list(loads)
        self.chosen = list(chosen)
        self._weight = weight
        self._demands = demands
        self._choices = choices
        self._members: list[dict[int, None]] = [{} for _ in loads]
        for flow, way in enumerate(self.chosen):
            for link in choices[flow].ways[way]:
                self._members[link][flow] = None

    def improve(self, budget: int, attempt: int) -> None:
        """Relieve links from the most loaded down, until none can be or `budget` moves have been considered.

        Each success lowers the sorted vector of link loads lexicographically. `attempt` bounds what one link may use.
        """
        queue = [(-load, link) for link, load in enumerate(self.loads) if self._members[link]]
        heapq.heapify(queue)
        while queue and budget > 0:
            load, link = heapq.heappop(queue)
            if -load != self.loads[link]:
                continue
            chain = _Chain(self, -load * (1 - _SLACK), min(budget, attempt))
            relieved = chain.relieve(link)
            budget -= min(budget, attempt) - chain.budget
            for changed in chain.touched if relieved else ():
                heapq.heappush(queue, (-self.loads[changed], changed))

    def ways(self, flow: int) -> tuple[Way, ...]:
        """The ways a flow may take, without the links they have in common."""
        return self._choices[flow].ways

    def members(self, link: int) -> list[int]:
        """The flows on a link that have a way around it, the largest first."""
        return sorted(self._members[link], key=lambda flow: (-self._demands[flow], flow))

    def on(self, flow: int, link: int) -> bool:
        """Whether the flow takes that link by choice."""
        return flow in self._members[link]

    def added(self, flow: int, link: int) -> float:
        """What the flow adds to the load of a link."""
        return self._demands[flow] * self._weight[link]

    def move(self, flow: int, way: int) -> None:
        """Put the flow on another of its ways."""
        ways = self._choices[flow].ways
        for link in ways[self.chosen[flow]]:
            del self._members[link][flow]
            self.loads[link] -= self.added(flow, link)
        for link in ways[way]:
            self._members[link][flow] = None
            self.loads[link] += self.added(flow, link)
        self.chosen[flow] = way

    def restore(self, flow: int, way: int, loads: dict[int, float]) -> None:
        """Undo a move, loads to the bit: subtracting again would let rounding errors pile up."""
        self.move(flow, way)
        for link, load in loads.items():
            self.loads[link] = load


class _Chain:
    """One search for a chain of moves after which every link it touched is below `level`."""

    def __init__(self, board: Board, level: float, budget: int) -> None:
        self.budget = budget
        self._board = board
        self._level = level
        self._moves: list[tuple[int, int, dict[int, float]]] = []
        self._moved: set[int] = set()

    @property
    def touched(self) -> set[int]:
        """The links whose load the chain has changed."""
        return {link for _, _, before in self._moves for link in before}

    def relieve(self, link: int) -> bool:
        """Bring `link` below the level, by short chains if there are any; without one nothing has changed."""
        return any(self._clear(link, depth) for depth in (0, 1, 2, _DEPTH))

    def _clear(self, link: int, depth: int) -> bool:
        """Move flows off `link` until it is below the level."""
        mark = len(self._moves)
        while self._board.loads[link] >= self._level:
            if not any(self._relocate(flow, way, depth) for flow, way in self._offers(link, depth)):
                self._undo(mark)
                return False
        return True

    def _offers(self, link: int, depth: int) -> Iterator[tuple[int, int]]:
        """Moves that take a flow off `link`, those that push nothing further first."""
        pushing: list[tuple[float, int, int]] = []
        for flow in self._board.members(link):
            if flow in self._moved:
                continue
            for way, links in enumerate(self._board.ways(flow)):
                if self.budget <= 0:
                    return
                if link in links:
                    continue
                self.budget -= 1
                excess = self._excess(flow, links)
                if not excess:
                    yield flow, way
                elif depth:
                    pushing.append((excess, flow, way))
        for _, flow, way in sorted(pushing):
            yield flow, way

    def _excess(self, flow: int, links: Way) -> float:
        """By how much the flow would lift the links of a way to the level and above, summed."""
        board, level, excess = self._board, self._level, 0.0
        for link in links:
            over = board.loads[link] + board.added(flow, link) - level
            if over >= 0 and not board.on(flow, link):
                excess += over + level
        return excess

    def _relocate(self, flow: int, way: int, depth: int) -> bool:
        """Move the flow and clear what it pushes over the level."""
        if self.budget <= 0:
            return False
        self.budget -= 1
        mark, board = len(self._moves), self._board
        old = board.chosen[flow]
        left, taken = board.ways(flow)[old], board.ways(flow)[way]
        before = {link: board.loads[link] for link in (*left, *taken)}
        board.move(flow, way)
        self._moves.append((flow, old, before))
        self._moved.add(flow)
        if all(board.loads[link] < self._level or (depth > 0 and self._clear(link, depth - 1)) for link in taken):
            return True
        self._undo(mark)
        return False

    def _undo(self, mark: int) -> None:
        while len(self._moves) > mark:
            flow, way, before = self._moves.pop()
            self._board.restore(flow, way, before)
            self._moved.discard(flow)
