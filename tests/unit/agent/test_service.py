"""The agent's notifications to a service manager."""

import asyncio
import socket

import pytest

from c4bench.agent import agent


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Systemd's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield line


def heard(line):
    try:
        return line.recv(64)
    except BlockingIOError:
        return b""


def test_readiness_once_then_the_watchdog(manager, monkeypatch):
    """The agent reports readiness once, when it serves, and then notifies the watchdog at half its time."""
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    ready = False

    async def scenario():
        nonlocal ready
        task = asyncio.create_task(agent.notify_systemd(lambda: ready))
        await asyncio.sleep(0.05)
        assert heard(manager) == b""
        ready = True
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert heard(manager) == b"READY=1"
    signs = iter(lambda: heard(manager), b"")
    assert len([sign for sign in signs if sign == b"WATCHDOG=1"]) >= 2


def test_without_a_manager_nothing_is_sent(monkeypatch):
    """Without NOTIFY_SOCKET the agent notifies nobody."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    asyncio.run(asyncio.wait_for(agent.notify_systemd(lambda: False), 5))
