"""The agent's process after the fork of its spawner: an event loop until SIGTERM."""

import asyncio
import contextlib
import importlib
import logging
import signal
import socket
import ssl
from pathlib import Path

from c4bench.agent import pages, service
from c4bench.agent.agent import Agent, WindowSender
from c4bench.model.agent import AgentConfig
from c4bench.wire.trust import client_context

# The room of the bus needs nats-py, which other agents do not: only its name is known here.
_ON_BUS = "c4bench.bus.agent_windows"
_logger = logging.getLogger(__name__)


def serve(config: AgentConfig, spawner: socket.socket) -> None:
    """Serve until SIGTERM."""
    trust = Path(config.trust)
    tls = client_context(trust / "ca.pem", trust / "cert.pem", trust / "key.pem")
    pages.release_and_freeze()
    bus = _bus(config, tls) if config.bus else None
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(Agent(config, tls, spawner, bus), Path(config.socket)))
    _logger.info("agent of %s stopped with its ranks", config.name)


def _bus(config: AgentConfig, tls: ssl.SSLContext) -> WindowSender:
    """What sends windows to the bus. Raises UsageError where nats-py is not installed, or for a wrong address."""
    sender: WindowSender = importlib.import_module(_ON_BUS).of_agent(config, tls)
    return sender


async def _run(agent: Agent, socket: Path) -> None:
    task = asyncio.ensure_future(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.TaskGroup() as tasks:
        notifying = tasks.create_task(service.report(socket.exists))
        await task
        notifying.cancel()
