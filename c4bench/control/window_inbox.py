"""Windows that wait to be ingested: at most one of each host, so that a master that falls behind stays current.

Receiving costs little and is never held up by ingesting and evaluating. A newer window of a host replaces the one that
waits, and what that held is in it, because counters are cumulative. Only operations may be lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from c4bench.errors import report_bug
from c4bench.model.window import Window

# So long windows are ingested at a time (s), before others have their turn: connections, requests and evaluation.
_TURN_S = 0.02


class WindowInbox:
    """Passes windows to `ingest` in order of arrival; `replaced` gets the host of each that is not ingested."""

    def __init__(self, ingest: Callable[[Window], Awaitable[None]], replaced: Callable[[str], None]) -> None:
        self._ingest, self._replaced = ingest, replaced
        self._waiting: dict[str, Window] = {}
        self._filled = asyncio.Event()

    def put(self, window: Window) -> None:
        """Add a host's newest window; it takes the place of one that waits."""
        if window.host in self._waiting:
            self._replaced(window.host)
        self._waiting[window.host] = window
        self._filled.set()

    async def run(self) -> None:
        """Ingest windows until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            until_s = time.monotonic() + _TURN_S
            while self._waiting:
                host = next(iter(self._waiting))
                await self._pass_on(self._waiting.pop(host))
                if time.monotonic() > until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + _TURN_S

    async def _pass_on(self, window: Window) -> None:
        """Ingest a window; an error in doing so is reported, and other windows follow."""
        try:
            await self._ingest(window)
        except Exception as failure:
            message = f"a window of {window.host} was not ingested: {type(failure).__name__}: {failure}"
            report_bug(message, failure)
