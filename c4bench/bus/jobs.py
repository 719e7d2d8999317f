"""A job on the bus: its entry, by which detectors know that it is to be judged, and what they find of it.

The master enters jobs in the key-value store. Each finding is published once, whoever finds it, however often.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from c4bench.budget import BUS_VALUE
from c4bench.bus.connection import Bus, OutdatedError, Stored
from c4bench.bus.incoming import COUNT_AT_MOST, MessageKind, check_times, decoded
from c4bench.bus.lease import HeldLease
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import bucket_key, bucket_stream, name_of, token
from c4bench.decoding import DecodingError, from_json, from_msgpack
from c4bench.model.diagnosis import Diagnosis
from c4bench.wire.messages import JobSpec


class JobEntry(msgspec.Struct, frozen=True):
    """An attempt that is to be judged, from number `first` of the telemetry stream on."""

    spec: JobSpec
    first: Annotated[int, msgspec.Meta(ge=1, le=COUNT_AT_MOST)]


ENTRY = MessageKind("job entry", lambda body: from_msgpack(body, JobEntry))


class JobEntries:
    """The entries of all attempts, by ID, each with its revision; `follow` keeps them up to date."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self._bucket = bus, bus.subjects.jobs
        self._reader = StreamReader(bus, bucket_stream(self._bucket), bucket_key(self._bucket, ">"))
        self.entries: dict[str, tuple[int, JobEntry]] = {}
        self.known = False

    async def read(self, within_s: float) -> None:
        """Read what has changed; `known` is true once all has been read. Raises one of FAILURES."""
        for stored in await self._reader.read(within_s):
            self._bus.incoming.used(ENTRY.name, stored.subject, lambda stored=stored: self._note(stored))  # type: ignore[misc]
        self.known = self.known or self._reader.caught_up

    def _note(self, stored: Stored) -> None:
        """Note an entry. Raises DecodingError, and notes nothing, if it is none of the attempt that is its key."""
        attempt = name_of(stored.subject.rpartition(".")[2])
        if stored.deleted:
            self.entries.pop(attempt, None)
            return
        entry = decoded(ENTRY, stored.body)
        if entry.spec.id != attempt:
            raise DecodingError(f"it is about {entry.spec.id!r}")
        self.entries[attempt] = stored.sequence, entry

    async def add(self, spec: JobSpec) -> None:
        """Enter an attempt, unless it is entered; it is judged from now on. Raises one of FAILURES."""
        if (entry := self.entries.get(spec.id)) is not None and entry[1].spec == spec:
            return
        stream = await self._bus.js.stream_info(self._bus.subjects.telemetry)
        entered = JobEntry(spec, stream.state.last_seq + 1)
        body = msgspec.msgpack.encode(entered)
        revision = await self._bus.publish(bucket_key(self._bucket, token(spec.id)), body)
        self.entries[spec.id] = revision, entered

    async def remove(self, attempt: str) -> None:
        """Remove an attempt that has ended, and its telemetry. Raises one of FAILURES."""
        await self._bus.js.publish(bucket_key(self._bucket, token(attempt)), headers={"KV-Operation": "DEL"})
        self.entries.pop(attempt, None)
        subjects = self._bus.subjects
        for stream in (subjects.telemetry, subjects.names):
            await self._bus.purge(stream, subjects.job(attempt))


def is_repeat(finding: Diagnosis, known: Iterable[Diagnosis]) -> bool:
    """Whether one of those known says the same of the same fault.

    A detector that has taken a job over finds again what the one before it has found. It says the same, and the onset
    lies before the other was named. If a component that has healed fails again, the onset lies after that.
    """
    return any(_identity(one) == _identity(finding) and finding.onset_s <= one.named_s for one in known)


def has_stood(finding: Diagnosis, before: HeldLease) -> bool:
    """Whether it is about a fault that stood, named, when the job was taken over.

    Who begins to read in the middle of a fault sees it begin there, after it was named.
    """
    standing = {(component.kind, component.name) for component in before.standing}
    return finding.onset_s <= before.judged_s and (finding.component.kind, finding.component.name) in standing


def _identity(finding: Diagnosis) -> tuple[object, ...]:
    return (
        finding.job,
        finding.syndrome,
        finding.cause,
        finding.component,
        frozenset(finding.alternatives),
    )


def read_finding(bus: Bus, stored: Stored) -> Diagnosis | None:
    """The finding in a message; None if it is none of the job of its subject: that is left out."""
    return bus.incoming.used(FINDING.name, stored.subject, lambda: _checked(bus, stored))


def _checked(bus: Bus, stored: Stored) -> Diagnosis:
    finding = decoded(FINDING, stored.body)
    if bus.subjects.finding(finding.job) != stored.subject:
        raise DecodingError(f"it is about the job {finding.job!r}")
    check_times((finding.onset_s, finding.alarmed_s, finding.named_s))
    if not 0 <= finding.confidence <= 1:
        raise DecodingError(f"it has a confidence of {finding.confidence:g}")
    return finding


FINDING = MessageKind("finding", lambda body: from_json(body, Diagnosis), BUS_VALUE)


class JobFindings:
    """The findings of one job. Several that write them at once do not both publish the same.

    Each publication states the number of the subject's newest message that its writer knows. If there is a newer one,
    the server refuses it; the writer then reads what is new, and leaves out what has been said.
    """

    def __init__(self, bus: Bus, job: str) -> None:
        self._bus, self._subject = bus, bus.subjects.finding(job)
        self._known: list[Diagnosis] = []
        self._read, self._last = 0, 0

    async def load(self) -> None:
        """Read what has been published since. Raises one of FAILURES."""
        reader = StreamReader(self._bus, self._bus.subjects.findings, self._subject, self._read + 1)
        for stored in await reader.read_all():
            self._read = stored.sequence
            if (finding := read_finding(self._bus, stored)) is not None:
                self._known.append(finding)
        newest = await self._bus.last(self._bus.subjects.findings, self._subject)
        # Old findings are removed some day, perhaps all of the job's.
        self._last = newest.sequence if newest else 0

    async def publish(self, finding: Diagnosis) -> bool:
        """Publish it unless it is a repeat; return whether it was published.

        Raises one of FAILURES if that is not known; to be called again then.
        """
        while not is_repeat(finding, self._known):
            try:
                stored = await self._bus.publish(self._subject, msgspec.json.encode(finding), after=self._last)
            except OutdatedError:
                await self.load()
            else:
                self._read = self._last = stored
                self._known.append(finding)
                return True
        return False
