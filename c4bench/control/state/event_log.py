"""Every event that the master has published, and those who follow them."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection

from c4bench.control.state.registry import name_of
from c4bench.control.state.store import Store
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Diagnosed, Event

# The newest events, among which those are looked for that have named something.
_OPEN_AMONG = 500
# Events that a master keeps in memory, if it runs for long; a test's master keeps all.
_KEPT = 10_000


class EventLog:
    """Events numbered from 0, including those of earlier masters with the same state folder.

    `events` are the newest, from number `oldest` on; there were `count` in all.
    """

    def __init__(self, store: Store, kept: int = _KEPT) -> None:
        self._store, self._kept = store, kept if store.durable else None
        self.events: list[Event] = store.events()
        self.oldest = store.state.events_dropped
        self._counts: dict[str, Counter[str]] = {}
        for event in self.events:
            self._count(event)
        self._forget_oldest()
        self._more = asyncio.Event()

    @property
    def count(self) -> int:
        """The number that the next event will have."""
        return self.oldest + len(self.events)

    def publish(self, event: Event) -> None:
        """Write an event to disk, then pass it to those who follow."""
        self._store.log(event)
        self.events.append(event)
        self._count(event)
        self._forget_oldest()
        self._more.set()
        self._more = asyncio.Event()

    def _forget_oldest(self) -> None:
        # A tenth at a time: taking one away from the front of a list moves all others.
        if self._kept is not None and len(self.events) > self._kept * 11 // 10:
            forgotten = len(self.events) - self._kept
            del self.events[:forgotten]
            self.oldest += forgotten

    def _count(self, event: Event) -> None:
        if isinstance(event, Diagnosed):
            job, syndrome = name_of(event.diagnosis.job), event.diagnosis.syndrome
            self._counts.setdefault(job, Counter())[syndrome] += 1

    def since(self, number: int) -> list[Event]:
        """The events from a number on, as far as they are kept."""
        return self.events[max(0, number - self.oldest) :]

    async def follow(self, first: int) -> AsyncIterator[Event]:
        """Events from number `first` on, without end; only new ones if `first` is negative."""
        number = self.count if first < 0 else first
        while True:
            while number < self.count:
                number = max(number, self.oldest)
                yield self.events[number - self.oldest]
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
        """The published diagnoses that are kept, in order."""
        return [event.diagnosis for event in self.events if isinstance(event, Diagnosed)]

    def open(self, attempts: Collection[str]) -> tuple[Diagnosis, ...]:
        """The newest diagnoses of these attempts of jobs, in order."""
        newest = (event.diagnosis for event in self.events[-_OPEN_AMONG:] if isinstance(event, Diagnosed))
        return tuple(diagnosis for diagnosis in newest if diagnosis.job in attempts)

    def counts(self) -> dict[str, Counter[str]]:
        """How many diagnoses of each syndrome there were, by job."""
        return {job: counts.copy() for job, counts in self._counts.items()}
