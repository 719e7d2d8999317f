"""The live page of a run: pytest's master writes its state into the run directory, and the page reads it from there.

That way nothing reaches a lab from outside, and its bytes stay those of its seed. The file holds the newest state only.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from c4bench import files
from c4bench.errors import UsageError
from c4bench.live.feed import EVERY_S, POLL_S, FaultHistory, Timeline, message
from c4bench.live.snapshot import Fleet, JobDetail, Sources, take_fleet, take_job
from c4bench.live.timeline import Entry
from c4bench.record.encoding import decode, encode

FILE = "live.json"


class RunState(msgspec.Struct, frozen=True):
    """What the page shows of a run at one time: `entries` are the newest of the `count` entries of the timeline."""

    fleet: Fleet
    jobs: tuple[JobDetail, ...]
    entries: tuple[Entry, ...]
    count: int


async def keep_state(sources: Sources, run: Path, clock: Callable[[], float] = time.time) -> None:
    """Write the state into the run directory each second, until cancelled; faults are those of the run's own events."""
    timeline, path = Timeline(sources, FaultHistory(run / "events.jsonl")), run / FILE
    while True:
        timeline.poll()
        jobs = (take_job(sources, name) for name in sorted(sources.registry.jobs()))
        known = tuple(job for job in jobs if job is not None)
        state = RunState(take_fleet(sources, clock()), known, tuple(timeline.since(0)), timeline.count)
        files.replace(path, [encode(state)])
        await asyncio.sleep(EVERY_S)


class RunFeed:
    """The messages of a run's page. Raises UsageError if the run keeps no state."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        if not self._path.exists():
            raise UsageError(f"{run} has no {FILE}: run pytest with --c4-page, and wait until its jobs have a master")

    async def follow(self, job: str) -> AsyncIterator[bytes]:
        """Messages for a viewer who looks at this job, "" for the first one; without end."""
        seen, number = 0, -1
        while True:
            changed = self._path.stat().st_mtime_ns
            if changed != seen:
                seen, state = changed, decode(self._path.read_bytes(), RunState, str(self._path))
                new = state.count - number if number >= 0 else 0
                if number < 0 or not 0 <= new <= len(state.entries):
                    yield message("timeline", state.entries)
                elif new:
                    yield message("entries", state.entries[-new:])
                number = state.count
                shown = next((detail for detail in state.jobs if job in ("", detail.name)), None)
                yield message("fleet", state.fleet) + message("job", shown)
            await asyncio.sleep(POLL_S)
