"""The agent's process after the fork of its spawner: an event loop until SIGTERM."""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from c4bench.agent.agent import Agent, WindowSender
from c4bench.agent.spawner import release_and_freeze
from c4bench.model.agent import AgentConfig
from c4bench.wire.trust import client_context

# The room of the bus needs nats-py, which other agents do not: only its name is known here.
_ON_BUS = "c4bench.bus.agent_windows"
_LOOK_S = 0.02


async def notify_systemd(serves: Callable[[], bool]) -> None:
    """Notify for the agent in this event loop; return at once if NOTIFY_SOCKET is unset."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        notifier.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        while not serves():
            await asyncio.sleep(_LOOK_S)
        notifier.send(b"READY=1")
        # Twice as often as it must, as sd_watchdog_enabled(3) advises.
        every_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
        while every_s:
            notifier.send(b"WATCHDOG=1")
            await asyncio.sleep(every_s)


_logger = logging.getLogger(__name__)


def serve(config: AgentConfig, spawner: socket.socket) -> None:
    """Serve until SIGTERM."""
    trust = Path(config.trust)
    tls = client_context(trust / "ca.pem", trust / "cert.pem", trust / "key.pem")
    release_and_freeze()
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
        notifying = tasks.create_task(notify_systemd(socket.exists))
        await task
        notifying.cancel()
