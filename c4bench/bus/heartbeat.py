"""Says that a detector is there, so that others soon notice when it is not.

Judging blocks a detector's loop for as long as an evaluation takes, and a lease that the loop writes is late by that. A
thread with a connection of its own is late only where the process does not run. It writes only while the loop turns: a
detector that is stuck is not there.
"""

import asyncio
import threading
import time
from contextlib import suppress
from typing import Self

import msgspec

from c4bench.bus.connection import Bus, cancelled, for_ever, opened
from c4bench.bus.lease import Held
from c4bench.bus.subjects import bucket_key, token
from c4bench.errors import UnhealthyError

DETECTOR = "detector."
# Who was not heard of for so long (s) is gone: several times as long as between two writes.
GONE_AFTER_S = 0.5
_EVERY_S = 0.1
# A loop that has not turned for so long is stuck (s).
_STUCK_AFTER_S = 0.5


class Heartbeat:
    """Writes the key of the detector called `name` while the context lasts; `bus` is opened on the thread."""

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus, self._subject = bus, bucket_key(bus.subjects.leases, heartbeat_key(name))
        self._held, self._turned_s = Held(name), time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="c4bench-heartbeat", daemon=True)
        self._task = self._loop.create_task(self._keep())

    def turn(self, held: Held) -> None:
        """The detector's loop turns, and its key is to say this."""
        self._held, self._turned_s = held, time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _keep(self) -> None:
        while not cancelled():
            with suppress(UnhealthyError):
                async with opened(self._bus):
                    await for_ever(self._write)
            await asyncio.sleep(_EVERY_S)

    async def _write(self) -> None:
        if self._bus.connected and time.monotonic() - self._turned_s < _STUCK_AFTER_S:
            await self._bus.client.publish(self._subject, msgspec.json.encode(self._held))
        await asyncio.sleep(_EVERY_S)


def heartbeat_key(name: str) -> str:
    """The key that a detector writes."""
    return f"{DETECTOR}{token(name)}"
