"""The agent's windows on the bus, for the detectors of its jobs. The bus never holds the agent up.

Windows are not acknowledged. One that could not be sent is left out, and the next has all names; who reads them sees by
their numbers that one is missing.
"""

import asyncio
import logging
import ssl
from contextlib import suppress

from c4bench.agent.window_message import WindowMessages
from c4bench.bus.connection import FAILURES, Bus
from c4bench.bus.subjects import BEGIN, CHANGE, Subjects
from c4bench.errors import UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.model.window import Window
from c4bench.wire.job_names import is_check

_logger = logging.getLogger(__name__)

_AGAIN_S = 0.5
# After so many changes of names a window has all names again: so many a reader has to go through at most.
_CHANGES_AT_MOST = 256


class BusWindows:
    """Sends windows while `run` runs. `lost` counts those that could not be sent."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._messages = WindowMessages()
        self._waiting: Window | None = None
        self._some = asyncio.Event()
        self._jobs: frozenset[str] = frozenset()
        self._changes, self._reconnects, self._begins = 0, 0, True
        self.lost = 0

    def put(self, window: Window) -> None:
        """Send the window as soon as possible; if an earlier one still waits, that one is left out."""
        if self._waiting is not None:
            self._lose()
        self._waiting = window
        self._some.set()

    def _lose(self) -> None:
        self.lost, self._begins = self.lost + 1, True

    async def run(self) -> None:
        """Connect, and send windows until cancelled."""
        await self._connect()
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                window, self._waiting = self._waiting, None
                if window is not None:
                    await self._send(window)
        finally:
            await self._bus.close()

    async def _connect(self) -> None:
        trouble = ""
        while not self._bus.connected:
            try:
                await self._bus.open()
            except UnhealthyError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _logger.warning("%s; trying again every %g s", error, _AGAIN_S)
                await asyncio.sleep(_AGAIN_S)

    async def _send(self, window: Window) -> None:
        jobs = frozenset(rank.job for rank in window.ranks if not is_check(rank.job))
        if not self._bus.connected:
            self._lose()
            return
        if self._begins or jobs - self._jobs or self._reconnects != self._bus.reconnects or self._many_changes():
            self._messages.begin()
            self._changes, self._begins, names = 0, False, BEGIN
        else:
            names = ""
        self._jobs, self._reconnects = jobs, self._bus.reconnects
        body = bytes(self._messages.encode(window))
        if not names and self._messages.named:
            self._changes, names = self._changes + 1, CHANGE
        for job in sorted(jobs):
            with suppress(*FAILURES):
                await self._bus.client.publish(self._bus.subjects.window(job, window.host, names), body)

    def _many_changes(self) -> bool:
        return self._changes >= _CHANGES_AT_MOST


def of_agent(config: AgentConfig, tls: ssl.SSLContext) -> BusWindows:
    """What sends the windows of an agent that has a bus. Raises UsageError for a wrong address."""
    return BusWindows(Bus(config.bus, tls, config.name, Subjects(config.cluster)))
