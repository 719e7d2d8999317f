"""Follows one job on the bus: reads its windows, has them judged at the server's times, and publishes what is found.

Names are in some windows only (`c4bench.wire.window_codec`). Those are also kept in a stream of their own. Who begins
in the middle reads that first: it has the names that a host's windows had when the first one was sent that is read.
"""

import asyncio
import math
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from c4bench.budget import JOB, OverBudgetError
from c4bench.bus import incoming
from c4bench.bus.connection import Bus, Stored, again, for_ever
from c4bench.bus.incoming import MessageKind
from c4bench.bus.jobs import JobEntry, JobFindings, has_stood
from c4bench.bus.lease import HeldLease
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import BEGIN, SubjectPlace, place
from c4bench.c4d.detector import Detector
from c4bench.c4d.observe.shared_fabric import SharedFabric
from c4bench.c4d.thresholds import (
    BASELINE_SETTLED_SPANS,
    NAME_SPANS,
    POINT_SPANS,
    UNSURE_SPANS,
    WARM_UP_SPANS,
    span_s,
)
from c4bench.control.detection.telemetry import log_benign
from c4bench.control.detection.windows import WindowParts
from c4bench.control.jobs.job import Job
from c4bench.decoding import DecodingError, decoding, from_msgpack
from c4bench.errors import RepeatedFailures
from c4bench.model.diagnosis import Component, Diagnosis
from c4bench.model.recording import Evaluated, FabricRecord, JobReport, Record, TrafficRecord
from c4bench.model.window import Window
from c4bench.wire.messages import JobSpec
from c4bench.wire.window_codec import EncodedWindow, WindowDecoder

Dropped = defaultdict[str, Counter[str]]
# A floor is learnt from, and a departure is named after, no more spans of the delay matrix than these together.
MEMORY_SPANS = WARM_UP_SPANS + BASELINE_SETTLED_SPANS + UNSURE_SPANS + NAME_SPANS + POINT_SPANS


class JobJudge:
    """C4D for one attempt, which learns what is normal from the last `memory_s` seconds, or from more.

    Rejected records are counted in `dropped`, by host and reason.
    """

    def __init__(self, spec: JobSpec, fabric: SharedFabric, dropped: Dropped) -> None:
        self._parts, self._dropped = WindowParts({spec.id: Job(spec)}), dropped
        self._attempt, self._detector = spec.id, Detector(fabric, dropped)

    @property
    def memory_s(self) -> float:
        """So much telemetry shows another judge what is normal (s)."""
        intervals_s = self._detector.intervals_s(self._attempt)
        return MEMORY_SPANS * span_s(statistics.median(intervals_s) if intervals_s else None)

    @property
    def standing(self) -> tuple[Component, ...]:
        """What has been named and has not healed."""
        return tuple(sorted(self._detector.standing(self._attempt), key=str))

    def ingest(self, record: Record) -> list[Diagnosis]:
        """Ingest the next record; return new findings if it is an evaluation."""
        if not isinstance(record, Window):
            found = self._detector.ingest(record)
            for slowdown in self._detector.poll_benign():
                log_benign(slowdown)
            return found
        window, foreign = self._parts.own(record)
        if foreign:
            self._dropped[record.host]["foreign rank"] += foreign
        return [found for part in self._parts.parts(window).values() for found in self._detector.ingest(part)]

    def learns(self, at_s: float) -> bool:
        """Whether an evaluation now would close a span of the delay matrix."""
        return self._detector.closes_span(at_s)


class JobJudges:
    """Judges of several attempts, which share what is known about the fabric."""

    def __init__(self) -> None:
        self._fabric = SharedFabric()

    def judge(self, spec: JobSpec, dropped: Dropped) -> JobJudge:
        """A judge of an attempt, which counts what it rejects."""
        return JobJudge(spec, self._fabric, dropped)

    def share(self, record: FabricRecord) -> None:
        """Ingest what path planning or another detector has learnt about the fabric."""
        self._fabric.ingest(record)

    def traffic(self) -> list[TrafficRecord]:
        """What was seen of our own jobs' traffic since the last call."""
        return self._fabric.poll()


UNREADABLE, FOREIGN, LOST = "unreadable window", "foreign window", "lost on the bus"
_BAD = (DecodingError, OverBudgetError)
EVALUATED_EVERY_S = 0.1
# A message may still be under way to us when it is so old (s).
_UNDER_WAY_S = 0.05
_WAIT_S = 0.05
# So long records are judged at a time (s), before others have their turn: leases are renewed beside this.
_TURN_S = 0.02
# Where the server's clock goes on by more (s) at once, the time before that is not judged.
_GAP_AT_MOST_S = 600.0
REPORT: MessageKind[JobReport] = MessageKind("report", lambda body: from_msgpack(body, JobReport))  # type: ignore[arg-type]


class _Named(NamedTuple):
    """A window's names: whether it has all of its host, the window without tables, and how many bytes it had."""

    begins: bool
    window: EncodedWindow
    size_bytes: int


class _Host:
    """The decoder of a host's windows, and names that were read before and that it has not reached."""

    def __init__(self) -> None:
        self.decoder = WindowDecoder()
        self.ahead: deque[_Named] = deque()
        self._ahead_bytes = 0

    def note(self, named: _Named) -> None:
        """Note names; of more than a job may bring, the oldest go."""
        self.ahead.append(named)
        self._ahead_bytes += named.size_bytes
        while self._ahead_bytes > JOB.bytes:
            self._next()

    def _next(self) -> _Named:
        named = self.ahead.popleft()
        self._ahead_bytes -= named.size_bytes
        return named

    def advance(self, end_s: float) -> None:
        """Apply the names of windows that ended before."""
        while self.ahead and self.ahead[0].window.end_s < end_s:
            named = self._next()
            if named.begins:
                self.decoder = WindowDecoder()
            self.decoder.decode(named.window)

    def passes(self, window: EncodedWindow) -> None:
        """A window is read, and with it its names."""
        if self.ahead and self.ahead[0].window.sequence == window.sequence:
            self._next()


class HostWindows:
    """Decodes the windows of a job's `hosts`; `drop` is called with the host, the reason and how many it loses.

    `newest` has the number of each host's newest window that was read, by an earlier reader to begin with.
    """

    def __init__(
        self, hosts: Collection[str], drop: Callable[[str, str, int], None], newest: Mapping[str, int]
    ) -> None:
        self._drop = drop
        self._hosts = {host: _Host() for host in hosts}
        self.newest = {host: number for host, number in newest.items() if host in self._hosts}

    def note_names(self, host: str, body: bytes, *, begins: bool) -> None:
        """Note a window with names, of the stream that keeps them; in that stream's order."""
        if (known := self._hosts.get(host)) is None:
            return
        try:
            window = incoming.window(body)
        except _BAD:
            return
        bare = msgspec.structs.replace(window, op_table=b"", awaits=b"", conn_table=b"", arrival_table=b"")
        known.note(_Named(begins, bare, len(body)))

    def receive(self, host: str, body: bytes, *, begins: bool = False) -> Window | None:
        """The next window of a host, which `begins` if it has all names; None if it is none of this host."""
        if (known := self._hosts.get(host)) is None:
            self._drop(host, FOREIGN, 1)
            return None
        try:
            encoded = incoming.window(body)
            if encoded.host != host:
                self._drop(host, FOREIGN, 1)
                return None
            with decoding():
                window = _decoded(known, encoded, begins=begins)
        except _BAD:
            self._drop(host, UNREADABLE, 1)
            return None
        self._count_lost(host, encoded.sequence, begins=begins)
        return window

    def _count_lost(self, host: str, sequence: int, *, begins: bool) -> None:
        """Count the numbers that are missing; what was read before is read again without that."""
        lost = sequence - self.newest.get(host, sequence - 1) - 1
        if lost > 0:
            self._drop(host, LOST, lost)
        # An agent that was restarted counts from 0 again.
        if begins or lost >= 0:
            self.newest[host] = sequence


def _decoded(known: _Host, encoded: EncodedWindow, *, begins: bool) -> Window:
    """The window with the names that its host has sent before, or only its own where it `begins`."""
    known.advance(encoded.end_s)
    known.passes(encoded)
    if begins:
        known.decoder = WindowDecoder()
    return known.decoder.decode(encoded)


class JobFollower:
    """Judges one job, from where the lease as it was `before` says that all is judged. `dropped` counts what is not.

    Before that it only learns. It holds `catching_up` until it has read what there is when it begins: of several jobs
    that were taken over, the first is judged again before the last.
    """

    def __init__(
        self, bus: Bus, entry: JobEntry, judge: JobJudge, dropped: Dropped, before: HeldLease, catching_up: asyncio.Lock
    ) -> None:
        self._job = job = entry.spec.id
        since_s = max(0.0, before.judged_s - before.memory_s)
        self._judge, self._dropped, self._bus, self._before = judge, dropped, bus, before
        self._hosts = {member.host for member in entry.spec.members}
        self._windows = self._host_windows()
        self._reader = StreamReader(bus, bus.subjects.telemetry, bus.subjects.job(job), entry.first, since_s)
        self._findings = JobFindings(bus, job)
        self._unpublished: deque[Diagnosis] = deque()
        self._clock = JobClock()
        self._catching_up = catching_up
        self._loaded, self._behind = False, math.inf
        self._failures = RepeatedFailures()
        # Up to when all findings have been published, and what stands named by them.
        self.judged_s, self.standing = 0.0, before.standing

    def progress(self, holder: str) -> HeldLease:
        """The job's lease, by how far it is judged; `holder` is "" to give it up."""
        if self.judged_s <= self._before.judged_s:
            return msgspec.structs.replace(self._before, holder=holder)
        memory_s, newest = self._judge.memory_s, self._windows.newest
        return HeldLease(holder, self._before.job, self.judged_s, memory_s, newest, standing=self.standing)

    def _drop(self, host: str, reason: str, count: int) -> None:
        self._dropped[host][reason] += count

    async def run(self) -> None:
        """Follow the job until cancelled; what fails because of the bus is tried again."""
        try:
            while not self._loaded:
                await again(self._load)
            async with self._catching_up:
                while self._behind > 0:
                    await again(self._step)
            await for_ever(self._step)
        finally:
            await self._reader.close()

    async def _load(self) -> None:
        """What was found of the job, and the names that its hosts have sent so far."""
        await asyncio.gather(self._load_names(), self._findings.load())
        self._loaded = True

    async def _load_names(self) -> None:
        windows = self._host_windows()
        names = StreamReader(self._bus, self._bus.subjects.names, self._bus.subjects.job_names(self._job))
        async for stored in names.each():
            if (at := self._place(stored)) is not None:
                windows.note_names(at.host, stored.body, begins=at.names == BEGIN)
            await asyncio.sleep(0)
        self._windows = windows

    def _host_windows(self) -> HostWindows:
        return HostWindows(self._hosts, self._drop, self._before.newest)

    def _place(self, stored: Stored) -> SubjectPlace | None:
        """What a message is; None if its subject does not say."""
        return self._bus.incoming.used("subject", stored.subject, lambda: place(stored.subject))

    async def _step(self) -> None:
        """Read what has come, judge, and publish."""
        found = await self._reader.read(_WAIT_S)
        until_s = time.monotonic() + _TURN_S
        for stored in found:
            if time.monotonic() > until_s:
                await asyncio.sleep(0)
                until_s = time.monotonic() + _TURN_S
            self._evaluate(self._clock.passes(stored.at_s, time.monotonic()))
            self._ingest(stored)
        if not self._reader.pending:
            self._evaluate(self._clock.now(time.monotonic()))
        while self._unpublished:
            await self._findings.publish(self._unpublished[0])
            self._unpublished.popleft()
        self.judged_s, self.standing = self._clock.judged_s, self._judge.standing
        self._behind = min(self._behind - len(found), self._reader.pending)
        await asyncio.sleep(0)

    def _evaluate(self, times_s: Sequence[float]) -> None:
        for at_s in times_s:
            if at_s > self._before.judged_s or self._judge.learns(at_s):
                self._unpublished += (
                    finding for finding in self._judged(Evaluated(at_s)) if not has_stood(finding, self._before)
                )

    def _judged(self, record: Record) -> list[Diagnosis]:
        """Have a record judged; an error in doing so is reported, and other records follow."""
        try:
            return self._judge.ingest(record)
        except Exception as failure:
            self._failures.note(f"{self._job}: a record was not judged", failure)
            return []

    def _ingest(self, stored: Stored) -> None:
        record: Record | None = None
        if (at := self._place(stored)) is None:
            return
        if at.host:
            record = self._windows.receive(at.host, stored.body, begins=at.names == BEGIN)
        else:
            record = self._bus.incoming.decoded(REPORT, stored.subject, stored.body)
        if record is not None:
            self._judged(record)


class JobClock:
    """The times at which a job is judged, by the server's clock, which stamps its messages.

    Each message moves it on, so that a job is judged at the same times when its messages are read again. Where nothing
    comes it goes on by our clock. `evaluated_s` is the newest time.
    """

    @property
    def judged_s(self) -> float:
        """Up to when all messages have been judged: where we went on by our own clock, more may have come by then."""
        return min(self.evaluated_s, self._newest[0]) if self._newest else 0.0

    def __init__(self) -> None:
        self.evaluated_s = 0.0
        self._newest: tuple[float, float] | None = None

    def passes(self, at_s: float, now_s: float) -> list[float]:
        """A message that came to the server `at_s` is about to be ingested, at `now_s` by our monotonic clock."""
        self._newest = at_s, now_s
        if not self.evaluated_s:
            self.evaluated_s = _tick(at_s)
        return self._until(at_s)

    def now(self, now_s: float) -> list[float]:
        """There is no further message now."""
        if self._newest is None:
            return []
        at_s, seen_s = self._newest
        return self._until(at_s + now_s - seen_s - _UNDER_WAY_S)

    def _until(self, until_s: float) -> list[float]:
        self.evaluated_s = max(self.evaluated_s, _tick(until_s - _GAP_AT_MOST_S))
        count = max(0, math.floor((until_s - self.evaluated_s) / EVALUATED_EVERY_S + 1e-9))
        times_s = [self.evaluated_s + EVALUATED_EVERY_S * (number + 1) for number in range(count)]
        self.evaluated_s = times_s[-1] if times_s else self.evaluated_s
        return times_s


def _tick(at_s: float) -> float:
    return math.floor(at_s / EVALUATED_EVERY_S) * EVALUATED_EVERY_S
