"""The jobs that are to be judged: the master enters them in the key-value store, and detectors read them there."""

from typing import Annotated

import msgspec

from c4bench.bus.connection import Bus, Stored
from c4bench.bus.incoming import COUNT_AT_MOST, MessageKind, decoded
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import bucket_key, bucket_stream, name_of, token
from c4bench.decoding import DecodingError, from_msgpack
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
