"""When to trace which source ports: those of live flows, and in rotation a few that no flow uses."""

from collections.abc import Iterable, Mapping
from itertools import islice

from c4bench.c4p.knowledge.link_state import LinkHealth
from c4bench.c4p.knowledge.path_knowledge import Pair, PathKnowledge
from c4bench.c4p.policy import PathPolicy


class RetraceScheduler:
    """When paths were traced last, and whether the next trace is urgent. Times are seconds on the caller's clock."""

    def __init__(self, policy: PathPolicy, knowledge: PathKnowledge, health: LinkHealth) -> None:
        self._policy, self._knowledge, self._health = policy, knowledge, health
        self._traced_s = float("-inf")
        self._urgent = False
        self._round = 0

    def request(self) -> None:
        """Make the next trace urgent."""
        self._urgent = True

    def clear_request(self) -> None:
        """Make the next trace usual again."""
        self._urgent = False

    def note_traced(self, now_s: float) -> None:
        """Note that everything has just been traced."""
        self._traced_s, self._urgent = now_s, False

    def next_ports(self, live: Mapping[Pair, Iterable[int]], now_s: float) -> dict[Pair, tuple[int, ...]]:
        """The source ports to trace now, given those that `live` flows use; empty if it is not time yet."""
        urgent = self._urgent or bool(self._health.missing)
        interval_s = self._policy.urgent_retrace_s if urgent else self._policy.retrace_s
        if not live or now_s - self._traced_s < interval_s:
            return {}
        self._traced_s = now_s
        self._round += 1
        pairs = sorted(live)
        first = self._round % len(pairs)
        wanted = ((pair, port) for pair in pairs[first:] + pairs[:first] for port in self._ports(pair, live[pair]))
        chosen: dict[Pair, tuple[int, ...]] = {}
        for pair, port in islice(wanted, self._policy.max_traces):
            chosen[pair] = (*chosen.get(pair, ()), port)
        return chosen

    def _ports(self, pair: Pair, used: Iterable[int]) -> list[int]:
        return list(dict.fromkeys([*used, *self._other_ports(pair)]))

    def _other_ports(self, pair: Pair) -> list[int]:
        """Further ports: one whose path crossed a missing link, which may be back, then ports in rotation."""
        entries, missing = self._knowledge.entries(pair), self._health.missing
        ports = sorted(entries)
        lost = [port for port in ports if not missing.isdisjoint(entries[port].hops)]
        count = min(self._policy.idle_ports, len(ports))
        rotation = [ports[(self._round * count + offset) % len(ports)] for offset in range(count)]
        return [lost[self._round % len(lost)], *rotation] if lost else rotation
