"""What viewers receive: server-sent events with the fleet, one job's details and new entries of the timeline.

The messages (WHATWG HTML, section 9.2) are `timeline`, once, with the newest entries; `entries`, those that are new;
`fleet` and `job`, each second, whole. A viewer that connects again begins again, so nothing has to be resumed.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from c4bench import files
from c4bench.c4p.knowledge.link_names import in_words
from c4bench.control.parts import Parts
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.foreign_text import one_line
from c4bench.live.snapshot import FleetView, JobDetail, take_fleet, take_job
from c4bench.model.event import (
    AgentBack,
    AgentMissing,
    Diagnosed,
    Event,
    HookRan,
    HostReturned,
    SlowdownExplained,
    SteeringStage,
)
from c4bench.model.steering import Incident
from c4bench.record.encoding import decode, encode

_EVERY_S = 1.0
_POLL_S = 0.2
_PAUSES = 20
# Of a fault history; the rest is read at the next polls.
_READ_AT_ONCE = 1 << 20
KEPT = 500
# In the run directory: pytest's master writes its state there, and the page of a run reads it.
FILE = "live.json"
_LONGEST = 4000
# The times that a page can show: the Unix time of the year 9999 is less.
_LAST_S = 2e11
# Kinds of lines that the injector writes.
_STAGES = {
    "fault_asked": "is asked for",
    "fault_refused": "was refused",
    "fault_applied": "is in force",
    "fault_healed": "is healed",
    "host_quarantined": "could not be healed, and no other is injected there",
}
FAULT, ALARM, FINDING, ACTION, HOST, BENIGN = "fault", "alarm", "finding", "action", "host", "benign"


class TimelineEntry(msgspec.Struct, frozen=True):
    """An entry of the timeline. `time_s` is Unix time; `kind` is one of fault, alarm, finding, action, host and benign.

    `subject` is the component, host or fault, `job` the job's name or "" and `text` one sentence without its full stop.
    """

    time_s: float
    kind: str
    subject: str
    job: str
    text: str


def entries_of(event: Event, links: Mapping[str, str]) -> tuple[TimelineEntry, ...]:
    """The entries of an event of the master: for a diagnosis its alarm and its finding; `links` has names of links."""
    match event:
        case Diagnosed(diagnosis=found):
            what, sure = found.syndrome.replace("_", " "), f"confidence {found.confidence:.0%}"
            return (
                TimelineEntry(found.alarmed_s, ALARM, what, found.job, f"the telemetry departs from normal: {what}"),
                TimelineEntry(
                    found.named_s,
                    FINDING,
                    found.component.named(links),
                    found.job,
                    in_words("; ".join((what, sure, *found.evidence)), links),
                ),
            )
        case SlowdownExplained(time_s, slowdown):
            text = in_words("; ".join((f"no fault but {slowdown.reason}", *slowdown.evidence)), links)
            return (TimelineEntry(time_s, BENIGN, slowdown.component.named(links), slowdown.job, text),)
        case SteeringStage(time_s, incident):
            subject, text = incident.diagnosis.component.named(links), _stage(incident, links)
            return (TimelineEntry(time_s, ACTION, subject, incident.job, text),)
        case HookRan(time_s, job, component, command, code, said):
            ended = "" if code is None else f", exit code {code}"
            return (TimelineEntry(time_s, ACTION, str(component), job, f"{command}{ended}: {said}"),)
        case _:
            return (_of_host(event),)


def _of_host(event: AgentMissing | AgentBack | HostReturned) -> TimelineEntry:
    match event:
        case AgentMissing(time_s, host, since_s, ranks):
            lasted = f"its agent has not been heard of for {time_s - since_s:.0f} s"
            return TimelineEntry(time_s, HOST, host, "", f"{lasted}; ranks there: {ranks}")
        case AgentBack(time_s, host, since_s):
            return TimelineEntry(time_s, HOST, host, "", f"its agent is back after {time_s - since_s:.0f} s")
        case HostReturned(time_s, host, fraction):
            how = "by hand" if fraction is None else f"a transfer reached {fraction:.0%} of the payload bound"
            return TimelineEntry(time_s, HOST, host, "", f"in service again: {how}")


def printable(entry: TimelineEntry) -> TimelineEntry:
    """The entry without what does not print in names and text that hosts, ranks and files brought."""
    subject, job, text = (one_line(part, _LONGEST) for part in (entry.subject, entry.job, entry.text))
    return msgspec.structs.replace(entry, subject=subject, job=job, text=text)


def _stage(incident: Incident, links: Mapping[str, str]) -> str:
    """What has been done about an incident last."""
    if incident.resumed_s is not None:
        step = "" if incident.resumed_step is None else f" from step {incident.resumed_step}"
        return f"the job trains again{step}"
    if incident.restarted_s is not None:
        return f"the job is restarted{f' on {incident.spare}' if incident.spare else ''}"
    if incident.isolated_s is not None:
        component = incident.component or incident.diagnosis.component
        return f"{incident.out or component.named(links)} is out of service"
    return f"decided to {incident.action}: {incident.reason}" if incident.reason else f"decided to {incident.action}"


def entry_of_fault(line: Mapping[str, Any]) -> TimelineEntry | None:
    """The entry of a line of a fault history (`c4bench.inject.controller`); None for a line of anything else."""
    time_s, stage = line.get("time_s"), _STAGES.get(str(line.get("kind")))
    if stage is None or not isinstance(time_s, int | float) or not 0 <= time_s < _LAST_S:
        return None
    subject = str(line.get("target") or line.get("where") or line.get("host") or "")
    reason = line.get("reason") or line.get("error")
    text = f"{line.get('fault') or 'a fault'} {stage}" + (f": {reason}" if reason else "")
    return TimelineEntry(float(time_s), FAULT, subject, "", text)


class FaultHistory:
    """A fault history that others append to, read line by line as it grows; None for no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offset = 0

    def poll(self) -> list[TimelineEntry]:
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

    def __init__(self, sources: Parts, history: FaultHistory) -> None:
        self._sources, self._history = sources, history
        self._events = 0
        self._entries: deque[TimelineEntry] = deque(maxlen=KEPT)
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

    def since(self, number: int) -> list[TimelineEntry]:
        """The kept entries from that number on."""
        new = min(self.count - number, len(self._entries))
        return list(self._entries)[len(self._entries) - new :]


class PageSource(Protocol):
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

    def __init__(self, sources: Parts, faults: Path | None, clock: Callable[[], float] = time.time) -> None:
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
                due_s = now_s + _EVERY_S
                yield self._state(job)
            await asyncio.sleep(_POLL_S)
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
            self._kept[key] = _Kept(message, began_s + max(_EVERY_S / 2, _PAUSES * (ended_s - began_s)))
        return self._kept[key].message


def message(event: str, data: object) -> bytes:
    """A server-sent event with its data as JSON."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), encode(data))


class RunState(msgspec.Struct, frozen=True):
    """What the page shows of a run at one time: `entries` are the newest of the `count` entries of the timeline."""

    fleet: FleetView
    jobs: tuple[JobDetail, ...]
    entries: tuple[TimelineEntry, ...]
    count: int


async def keep_state(sources: Parts, run: Path, clock: Callable[[], float] = time.time) -> None:
    """Write the state into the run directory each second, until cancelled; faults are those of the run's own events.

    That way nothing reaches a lab from outside, and its bytes stay those of its seed. The newest state only is kept.
    """
    timeline, path = Timeline(sources, FaultHistory(run / "events.jsonl")), run / FILE
    while True:
        timeline.poll()
        jobs = (take_job(sources, name) for name in sorted(sources.registry.jobs()))
        known = tuple(job for job in jobs if job is not None)
        state = RunState(take_fleet(sources, clock()), known, tuple(timeline.since(0)), timeline.count)
        files.replace(path, [encode(state)])
        await asyncio.sleep(_EVERY_S)


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
            await asyncio.sleep(_POLL_S)
