"""The lines to agents: who is there, and orders that are not waited for for ever."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.wire.messages import Empty, Hello, StartRanks, StopRanks
from c4bench.wire.peer import LostError, Peer

_logger = logging.getLogger(__name__)

# An agent answers these in milliseconds. One that does not is not waited for.
_START_WITHIN_S = 3.0
_STOP_WITHIN_S = 1.0


class AgentConnection(msgspec.Struct):
    """One connected agent."""

    hello: Hello
    peer: Peer


class AgentConnections:
    """The lines that are open, by host."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentConnection] = {}
        self._news = asyncio.Condition()

    def peer(self, host: str) -> Peer:
        """The line to a host's agent. Raises UnhealthyError when there is none."""
        known = self.agents.get(host)
        if known is None:
            raise UnhealthyError(f"{host}: no agent is connected; is it deployed and started? (c4bench doctor)")
        return known.peer

    async def announce(self) -> None:
        """Tell those who wait that an agent has come or gone."""
        async with self._news:
            self._news.notify_all()

    async def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()` is true of the master's state; False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(holds)
        return holds()


def log_connected(said: Hello) -> None:
    """Log that an agent is there, as a warning where no ranks can run on its host."""
    level, lack = (logging.WARNING, f"; ranks cannot run there: {said.rdma}") if said.rdma else (logging.INFO, "")
    _logger.log(level, "agent of %s connected, version %s%s", said.host, said.version, lack, extra={"host": said.host})


async def start_on(line: AgentConnection | None, request: StartRanks) -> bool:
    """Have an agent start ranks; whether it is there and has answered. Raises UnhealthyError when it refuses."""
    if line is None:
        return False
    try:
        async with asyncio.timeout(_START_WITHIN_S):
            await line.peer.call("start", request, Empty)
    except (TimeoutError, LostError):
        return False
    return True


async def stop_on(line: AgentConnection | None, attempt: str) -> None:
    """Have an agent end an attempt's ranks, if it is there; one that does not answer is told when it is back."""
    if line is not None:
        with contextlib.suppress(UnhealthyError, TimeoutError):
            async with asyncio.timeout(_STOP_WITHIN_S):
                await line.peer.call("stop", StopRanks(attempt), Empty)
