"""The connections to agents, requests to agents with short timeouts, and which of the expected agents are missing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.model.event import AgentBack, AgentMissing
from c4bench.model.window import Window
from c4bench.wire.messages import Empty, Hello, StartRanks, StopRanks
from c4bench.wire.peer import LostError, Peer

_logger = logging.getLogger(__name__)

# A healthy agent answers these in milliseconds.
_START_WITHIN_S = 3.0
_STOP_WITHIN_S = 1.0
# An agent is missing when it has been disconnected for so long.
GRACE_S = 5.0


class AgentConnection(msgspec.Struct):
    """One connected agent."""

    hello: Hello
    peer: Peer


class AgentConnections:
    """The open connections by host; `refused` counts the malformed messages of every host that has ever connected."""

    def __init__(self) -> None:
        self.by_host: dict[str, AgentConnection] = {}
        self.refused: dict[str, int] = {}
        self._newest_hello: dict[str, Hello] = {}
        self._changed = asyncio.Condition()

    def peer(self, host: str) -> Peer:
        """The connection to a host's agent. Raises UnhealthyError if there is none."""
        connection = self.by_host.get(host)
        if connection is None:
            raise UnhealthyError(f"{host}: no agent is connected; is it deployed and started? (c4bench doctor)")
        return connection.peer

    def add(self, connection: AgentConnection) -> None:
        """Add a connection whose agent has introduced itself; the jobs that it named are known to others by now."""
        connection.hello = msgspec.structs.replace(connection.hello, jobs=())
        host = connection.hello.host
        self.by_host[host], self._newest_hello[host] = connection, connection.hello

    def remove(self, host: str, peer: Peer) -> bool:
        """Remove a connection; False if it was not the host's present one."""
        connection = self.by_host.get(host)
        if connection is None or connection.peer is not peer:
            return False
        del self.by_host[host]
        return True

    def newest_hello(self, host: str) -> Hello | None:
        """The newest introduction of a host's agent; None if there was none."""
        return self._newest_hello.get(host)

    async def announce(self) -> None:
        """Notify those who wait that an agent has connected or disconnected."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()` is true of the master's state; False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(holds)
        return holds()


def log_connected(hello: Hello) -> None:
    """Log that an agent has connected, as a warning if no ranks can run on its host."""
    level, lack = (logging.WARNING, f"; ranks cannot run there: {hello.rdma}") if hello.rdma else (logging.INFO, "")
    values = (hello.host, hello.version, lack)
    _logger.log(level, "agent of %s connected, version %s%s", *values, extra={"host": hello.host})


async def start_on(connection: AgentConnection | None, request: StartRanks) -> bool:
    """Have an agent start ranks; False if it is absent or does not answer. Raises UnhealthyError if it refuses."""
    if connection is None:
        return False
    try:
        async with asyncio.timeout(_START_WITHIN_S):
            await connection.peer.call("start", request, Empty)
    except (TimeoutError, LostError):
        return False
    return True


async def stop_on(connection: AgentConnection | None, attempt: str) -> None:
    """Have an agent end an attempt's ranks; one that does not answer now is told when it connects again."""
    if connection is not None:
        with contextlib.suppress(UnhealthyError, TimeoutError):
            async with asyncio.timeout(_STOP_WITHIN_S):
                await connection.peer.call("stop", StopRanks(attempt), Empty)


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
