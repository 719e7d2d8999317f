"""Every event that the master has published, and those who follow them."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

from c4bench.control.job_registry import name_of
from c4bench.control.store import Store
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed, Event


class EventLog:
    """Events numbered from 0, including those of earlier masters with the same state folder."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.events: list[Event] = store.events()
        self._more = asyncio.Event()

    def publish(self, event: Event) -> None:
        """Write an event to disk, then pass it to those who follow."""
        self._store.log(event)
        self.events.append(event)
        self._more.set()
        self._more = asyncio.Event()

    async def follow(self, first: int) -> AsyncIterator[Event]:
        """Events from number `first` on, without end; only new ones if `first` is negative."""
        number = len(self.events) if first < 0 else first
        while True:
            while number < len(self.events):
                yield self.events[number]
                number += 1
            await self._more.wait()

    async def first(self, holds: Callable[[Event], bool], timeout_s: float, since: int = 0) -> Event | None:
        """The first event from number `since` on of which `holds` is true; None if there is none within `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                async for event in self.follow(since):
                    if holds(event):
                        return event
        return None

    @property
    def diagnoses(self) -> list[Diagnosis]:
        """Every published diagnosis, in order."""
        return [event.diagnosis for event in self.events if isinstance(event, Diagnosed)]

    def counts(self) -> dict[str, Counter[str]]:
        """How many diagnoses of each syndrome there were, by job."""
        counts: dict[str, Counter[str]] = {}
        for diagnosis in self.diagnoses:
            counts.setdefault(name_of(diagnosis.job), Counter())[diagnosis.syndrome] += 1
        return counts
