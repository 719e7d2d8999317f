"""What viewers receive: server-sent events with the fleet, one job's details and new entries of the timeline.

The messages (WHATWG HTML, section 9.2) are `timeline`, once, with the newest entries; `entries`, those that are new;
`fleet` and `job`, each second, whole. A viewer that connects again begins again, so nothing has to be resumed.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from c4bench.decoding import DecodingError, from_json
from c4bench.live.snapshot import Sources, take_fleet, take_job
from c4bench.live.timeline import Entry, entries_of, entry_of_fault, printable
from c4bench.record.encoding import encode

EVERY_S = 1.0
POLL_S = 0.2
_PAUSES = 20
# Of a fault history; the rest is read at the next polls.
_READ_AT_ONCE = 1 << 20
KEPT = 500


class FaultHistory:
    """A fault history that others append to, read line by line as it grows; None for no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offset = 0

    def poll(self) -> list[Entry]:
        """The entries of whole lines since the last call; a file that became shorter is read again.

        A line longer than what is read at once is left out.
        """
        if self._path is None or not self._path.exists():
            return []
        size = self._path.stat().st_size
        if size == self._offset:
            return []
        start = self._offset if size > self._offset else 0
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(_READ_AT_ONCE)
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _READ_AT_ONCE else 0)
        self._offset = start + end
        return [entry for line in data[:end].splitlines() if (entry := entry_of_fault(_mapping(line)))]


def _mapping(line: bytes) -> dict[str, Any]:
    try:
        return from_json(line, dict[str, Any])
    except DecodingError:
        return {}


class Timeline:
    """The newest entries, numbered in the order in which they became known."""

    def __init__(self, sources: Sources, history: FaultHistory) -> None:
        self._sources, self._history = sources, history
        self._events = 0
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self.count = 0

    def poll(self) -> None:
        """Add what has become known since the last call."""
        log = self._sources.log
        new = self._history.poll()
        for event in log.since(self._events):
            new += entries_of(event, self._sources.paths.named.names)
        self._events = log.count
        self._entries += sorted(map(printable, new), key=lambda entry: entry.time_s)
        self.count += len(new)

    def since(self, number: int) -> list[Entry]:
        """The kept entries from that number on."""
        new = min(self.count - number, len(self._entries))
        return list(self._entries)[len(self._entries) - new :]


class Source(Protocol):
    """Where a page's messages come from."""

    def follow(self, job: str) -> AsyncIterator[bytes]:
        """Messages for a viewer who looks at this job, "" for the first one; without end."""


class _Kept(NamedTuple):
    """A message that all viewers are sent until `due_s` (monotonic)."""

    message: bytes
    due_s: float


class Feed:
    """The messages for all viewers; what they share is computed once, and only while somebody looks.

    A message is computed again no sooner than after 20 times the time that it took, as is that of a large delay matrix,
    so each costs the master at most 5 % of its time.
    """

    def __init__(self, sources: Sources, faults: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._sources, self._clock = sources, clock
        self._timeline = Timeline(sources, FaultHistory(faults))
        self._kept: dict[str, _Kept] = {}

    async def follow(self, job: str) -> AsyncIterator[bytes]:
        """Messages for a viewer who looks at this job, "" for the first one; without end."""
        self._timeline.poll()
        number, due_s = self._timeline.count, 0.0
        yield message("timeline", self._timeline.since(0))
        while True:
            if (now_s := time.monotonic()) >= due_s:
                due_s = now_s + EVERY_S
                yield self._state(job)
            await asyncio.sleep(POLL_S)
            self._timeline.poll()
            if new := self._timeline.since(number):
                number = self._timeline.count
                yield message("entries", new)

    def _state(self, job: str) -> bytes:
        """The fleet and a job; one that has ended has no details."""
        fleet = self._shared("", lambda: message("fleet", take_fleet(self._sources, self._clock())))
        running = sorted(self._sources.registry.jobs())
        name = job or next(iter(running), "")
        if name not in running:
            return fleet + message("job", None)
        return fleet + self._shared(name, lambda: message("job", take_job(self._sources, name)))

    def _shared(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The message of this key; made again if it is due."""
        began_s = time.monotonic()
        if key not in self._kept or self._kept[key].due_s <= began_s:
            self._kept = {other: kept for other, kept in self._kept.items() if kept.due_s > began_s}
            message = make()
            ended_s = time.monotonic()
            self._kept[key] = _Kept(message, began_s + max(EVERY_S / 2, _PAUSES * (ended_s - began_s)))
        return self._kept[key].message


def message(event: str, data: object) -> bytes:
    """A server-sent event with its data as JSON."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), encode(data))
