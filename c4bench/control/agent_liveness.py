"""Whose agents are expected, and whose are missing."""

from collections.abc import Iterable, Mapping

from c4bench.model.event import AgentBack, AgentMissing
from c4bench.model.telemetry import Window

GRACE_S = 5.0


class AgentLiveness:
    """Hosts by when their agents were last connected; an agent is missing once it has been gone for `grace_s`.

    Whether the ranks on a missing host are alive the others know: what they send arrives, or does not. A NIC answers
    for a dead process for a while, so only data that its ranks must have posted themselves counts.
    """

    def __init__(self, expected: Iterable[str], now_s: float, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._gone_s = dict.fromkeys(expected, now_s)
        self._missing: dict[str, AgentMissing] = {}
        self._arrived: dict[str, dict[tuple[str, str, str, int], int]] = {}
        self._moving: set[str] = set()

    @property
    def missing(self) -> Mapping[str, AgentMissing]:
        """The hosts whose agents are missing."""
        return self._missing

    def came(self, host: str, now_s: float) -> AgentBack | None:
        """An agent has connected; word of it, if it was missing."""
        self._drop(host)
        found = self._missing.pop(host, None)
        return AgentBack(now_s, host, found.since_s) if found else None

    def went(self, host: str, now_s: float) -> None:
        """An agent's connection is lost."""
        self._gone_s[host] = now_s

    def left(self, host: str) -> None:
        """An agent has said that it goes; it is expected no more."""
        self._drop(host)
        self._missing.pop(host, None)

    def _drop(self, host: str) -> None:
        self._gone_s.pop(host, None)
        self._arrived.pop(host, None)
        self._moving.discard(host)

    def saw(self, window: Window) -> None:
        """What arrives elsewhere from hosts that are gone."""
        if not self._gone_s:
            return
        for end in window.arrivals:
            host = end.source.partition("/")[0]
            if host in self._gone_s:
                known = self._arrived.setdefault(host, {})
                place = (end.comm, end.source, end.destination, end.qp)
                if end.messages > known.setdefault(place, end.messages):
                    self._moving.add(host)
                    known[place] = end.messages

    def judge(self, now_s: float, busy: Iterable[str]) -> list[AgentMissing]:
        """Agents newly found missing; `busy` are the hosts that jobs have ranks on."""
        late = [host for host, gone_s in self._gone_s.items() if now_s - gone_s >= self._grace_s]
        found = [self._found(host, now_s, set(busy)) for host in late if host not in self._missing]
        self._missing |= {event.host: event for event in found}
        return found

    def _found(self, host: str, now_s: float, busy: set[str]) -> AgentMissing:
        ranks = "none" if host not in busy else "moving" if host in self._moving else "still"
        return AgentMissing(now_s, host, self._gone_s[host], ranks)
