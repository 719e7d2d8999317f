"""The agent's process after the fork of its spawner: an event loop until SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
from pathlib import Path

from c4bench.agent import pages, service
from c4bench.agent.agent import Agent
from c4bench.model.agent import AgentConfig
from c4bench.wire.trust import client_context

_logger = logging.getLogger(__name__)


def serve(config: AgentConfig, spawner: socket.socket) -> None:
    """Serve until SIGTERM."""
    trust = Path(config.trust)
    tls = client_context(trust / "ca.pem", trust / "cert.pem", trust / "key.pem")
    pages.release_and_freeze()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(Agent(config, tls, spawner), Path(config.socket)))
    _logger.info("agent of %s stopped with its ranks", config.name)


async def _run(agent: Agent, socket: Path) -> None:
    task = asyncio.ensure_future(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.TaskGroup() as tasks:
        notifying = tasks.create_task(service.report(socket.exists))
        await task
        notifying.cancel()
