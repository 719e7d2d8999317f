"""Notify systemd (sd_notify(3)): once when the agent serves, then as a watchdog of its event loop."""

import asyncio
import os
import socket
from collections.abc import Callable

_LOOK_S = 0.02


async def report(serves: Callable[[], bool]) -> None:
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
