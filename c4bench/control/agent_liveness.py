"""Which agents the master expects, and which of them are missing."""

from collections.abc import Iterable, Mapping

from c4bench.model.event import AgentBack, AgentMissing
from c4bench.model.window import Window

GRACE_S = 5.0


class AgentLiveness:
    """Expected agents; one is missing when it has been disconnected for `grace_s`.

    Windows of other hosts show whether the ranks on a missing host are alive. A NIC acknowledges data for a dead
    process for a while, so only messages that its ranks must have posted themselves count.
    """

    def __init__(self, expected: Iterable[str], now_s: float, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._lost_s = dict.fromkeys(expected, now_s)
        self._missing: dict[str, AgentMissing] = {}
        self._arrived: dict[str, dict[tuple[str, str, str, int], int]] = {}
        self._moving: set[str] = set()

    @property
    def missing(self) -> Mapping[str, AgentMissing]:
        """The hosts whose agents are missing."""
        return self._missing

    def connected(self, host: str, now_s: float) -> AgentBack | None:
        """Note that an agent has connected; return an event if it was missing."""
        self._drop(host)
        event = self._missing.pop(host, None)
        return AgentBack(now_s, host, event.since_s) if event else None

    def lost(self, host: str, now_s: float) -> None:
        """Note that the connection of an agent was lost."""
        self._lost_s[host] = now_s

    def extend(self, late_s: float) -> None:
        """Give all lost agents more time: the master itself was late by `late_s`, and could accept no connection."""
        self._lost_s = {host: lost_s + late_s for host, lost_s in self._lost_s.items()}

    def left(self, host: str) -> None:
        """Note that an agent has disconnected in order; it is not expected any more."""
        self._drop(host)
        self._missing.pop(host, None)

    def _drop(self, host: str) -> None:
        self._lost_s.pop(host, None)
        self._arrived.pop(host, None)
        self._moving.discard(host)

    def ingest(self, window: Window) -> None:
        """Note which messages of disconnected hosts have arrived on the window's host."""
        if not self._lost_s:
            return
        for arrival in window.arrivals:
            host = arrival.source.partition("/")[0]
            if host in self._lost_s:
                counts = self._arrived.setdefault(host, {})
                key = (arrival.comm, arrival.source, arrival.destination, arrival.qp)
                if arrival.messages > counts.setdefault(key, arrival.messages):
                    self._moving.add(host)
                    counts[key] = arrival.messages

    def evaluate(self, now_s: float, busy: Iterable[str]) -> list[AgentMissing]:
        """Agents that have become missing; `busy` are the hosts that jobs have ranks on."""
        late = [host for host, lost_s in self._lost_s.items() if now_s - lost_s >= self._grace_s]
        events = [self._event(host, now_s, set(busy)) for host in late if host not in self._missing]
        self._missing |= {event.host: event for event in events}
        return events

    def _event(self, host: str, now_s: float, busy: set[str]) -> AgentMissing:
        ranks = "none" if host not in busy else "moving" if host in self._moving else "still"
        return AgentMissing(now_s, host, self._lost_s[host], ranks)
