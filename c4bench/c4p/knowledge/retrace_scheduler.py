"""Which source ports to trace, and when: those of live flows, and a few others in turn."""

from collections.abc import Iterable, Mapping
from itertools import islice

from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.knowledge.path_knowledge import Pair, PathKnowledge
from c4bench.c4p.policy import PathPolicy


class RetraceScheduler:
    """When paths were looked at last, and whether anything is amiss, which hurries the next look."""

    def __init__(self, policy: PathPolicy, knowledge: PathKnowledge, health: LinkHealth) -> None:
        self._policy, self._knowledge, self._health = policy, knowledge, health
        self._looked_s = float("-inf")
        self._amiss = False
        self._turn = 0

    def worry(self) -> None:
        """Something is amiss."""
        self._amiss = True

    def reassure(self) -> None:
        """What was amiss has been looked into."""
        self._amiss = False

    def looked(self, now_s: float) -> None:
        """All there is to know has just been learnt."""
        self._looked_s, self._amiss = now_s, False

    def look(self, live: Mapping[Pair, Iterable[int]], now_s: float) -> dict[Pair, tuple[int, ...]]:
        """Which source ports to trace now, if these are in use; empty when it is not time."""
        worried = self._amiss or bool(self._health.missing)
        if not live or now_s - self._looked_s < (self._policy.hurry_s if worried else self._policy.look_s):
            return {}
        self._looked_s = now_s
        self._turn += 1
        pairs = sorted(live)
        first = self._turn % len(pairs)
        wanted = ((pair, port) for pair in pairs[first:] + pairs[:first] for port in self._ports(pair, live[pair]))
        chosen: dict[Pair, tuple[int, ...]] = {}
        for pair, port in islice(wanted, self._policy.traces):
            chosen[pair] = (*chosen.get(pair, ()), port)
        return chosen

    def _ports(self, pair: Pair, used: Iterable[int]) -> list[int]:
        return list(dict.fromkeys([*used, *self._others(pair)]))

    def _others(self, pair: Pair) -> list[int]:
        """Ports to look at besides: one that led over a missing link, which may be back, then the pair's in turn."""
        entries, missing = self._knowledge.entries(pair), self._health.missing
        ports = sorted(entries)
        lost = [port for port in ports if not missing.isdisjoint(entries[port].hops)]
        count = min(self._policy.others, len(ports))
        turn = [ports[(self._turn * count + offset) % len(ports)] for offset in range(count)]
        return [lost[self._turn % len(lost)], *turn] if lost else turn
