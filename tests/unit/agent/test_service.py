"""What a service manager hears of the agent."""

import asyncio
import socket

import pytest

from c4bench.agent import service


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Systemd's end of the line."""
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


def test_it_is_ready_when_it_serves_and_lives_while_its_loop_turns(manager, monkeypatch):
    """Nothing before it serves, then readiness once, then a sign of life at half the watchdog's time."""
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    serving = False

    async def scenario():
        nonlocal serving
        task = asyncio.create_task(service.report(lambda: serving))
        await asyncio.sleep(0.05)
        assert heard(manager) == b""
        serving = True
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert heard(manager) == b"READY=1"
    signs = iter(lambda: heard(manager), b"")
    assert len([sign for sign in signs if sign == b"WATCHDOG=1"]) >= 2


def test_without_a_manager_nothing_is_said(monkeypatch):
    """An agent in the foreground, in the lab, or by its own daemon has nobody to tell."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    asyncio.run(asyncio.wait_for(service.report(lambda: False), 5))
