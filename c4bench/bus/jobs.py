"""The jobs that are to be judged: the master enters them in the key-value store, and detectors read them there."""

import msgspec

from c4bench.bus.connection import Bus
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import bucket_key, bucket_stream, name_of, token
from c4bench.wire.messages import JobSpec


class JobEntry(msgspec.Struct, frozen=True):
    """An attempt that is to be judged, from number `first` of the telemetry stream on."""

    spec: JobSpec
    first: int


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
            attempt = name_of(stored.subject.rpartition(".")[2])
            if stored.deleted:
                self.entries.pop(attempt, None)
            else:
                self.entries[attempt] = stored.sequence, msgspec.msgpack.decode(stored.body, type=JobEntry)
        self.known = self.known or self._reader.caught_up

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
        await (await self._bus.js.key_value(self._bucket)).delete(token(attempt), validate_keys=False)
        self.entries.pop(attempt, None)
        subjects = self._bus.subjects
        for stream in (subjects.telemetry, subjects.names):
            await self._bus.purge(stream, subjects.job(attempt))
