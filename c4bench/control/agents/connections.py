"""The connections to agents, and requests to agents with short timeouts."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.wire.messages import Empty, Hello, StartRanks, StopRanks
from c4bench.wire.peer import LostError, Peer

_logger = logging.getLogger(__name__)

# A healthy agent answers these in milliseconds.
_START_WITHIN_S = 3.0
_STOP_WITHIN_S = 1.0


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
