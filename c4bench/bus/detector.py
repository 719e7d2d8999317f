"""A detector: one of several processes that share the jobs of a cluster; each job is judged by one of them."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from contextlib import suppress

import msgspec

from c4bench.bus.connection import FAILURES, Bus, for_ever
from c4bench.bus.incoming import SOURCE, MessageKind, check_rates, check_times
from c4bench.bus.job_follower import Dropped, JobFollower, JobJudges
from c4bench.bus.jobs import JobEntries, JobEntry
from c4bench.bus.lease import (
    DETECTOR,
    ENDS_AFTER_S,
    GONE_AFTER_S,
    RENEWED_EVERY_S,
    Heartbeat,
    HeldLease,
    Lease,
    Renewals,
    fair_share,
    heartbeat_key,
    read_lease,
)
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import bucket_key, bucket_stream, token
from c4bench.decoding import from_msgpack
from c4bench.errors import report_bug
from c4bench.model.recording import FabricRecord, LinkRates, TrafficArrival, TrafficCarried

_logger = logging.getLogger(__name__)

JOB = "job."
_LOOK_S = 0.1
# So long we wait for changes of the list of jobs, before we look whose detector is gone (s).
_TEND_S = 0.05


def _fabric_record(body: bytes) -> FabricRecord:
    record: FabricRecord = from_msgpack(body, FabricRecord)  # type: ignore[arg-type]
    match record:
        case TrafficArrival() | TrafficCarried():
            check_times((record.opened_s, record.closed_s))
    match record:
        case LinkRates() | TrafficCarried():
            check_rates(record.bps.values())
    return record


SHARED = MessageKind("record of the fabric", _fabric_record)


class _Following:
    """A job that we judge: its lease, when that was renewed last (s, monotonic), and who follows it."""

    def __init__(self, lease: Lease, revision: int, follower: JobFollower) -> None:
        self.lease, self.revision, self.follower = lease, revision, follower
        self.renewed_s = time.monotonic()
        self.task = asyncio.create_task(follower.run())

    def current(self, written: bool | None) -> bool:
        """Whether the lease is ours still; `written` says whether it was renewed now, None that this is not known."""
        if written:
            self.renewed_s = time.monotonic()
        return written is not False and time.monotonic() - self.renewed_s < ENDS_AFTER_S

    async def stop(self) -> None:
        """Stop following."""
        self.task.cancel()
        await asyncio.wait((self.task,))


class BusDetector:
    """The detector called `name`, which no other may be called; `judges` judge its jobs."""

    def __init__(self, bus: Bus, name: str, judges: JobJudges) -> None:
        self._bus, self._name, self._judges = bus, name, judges
        self._jobs, self._renewals, self._detectors = JobEntries(bus), Renewals(), Renewals(GONE_AFTER_S)
        names = bus.subjects
        self._leases = StreamReader(bus, bucket_stream(names.leases), bucket_key(names.leases, ">"))
        self._shared = StreamReader(bus, names.fabric, names.every_fabric)
        self._following: dict[str, _Following] = {}
        self._catching_up = asyncio.Lock()
        self._dropped: Dropped = defaultdict(Counter)
        self._reconnects, self._leases_known, self._renewed_s = 0, False, 0.0

    async def run(self) -> None:
        """Judge a fair share of the jobs until cancelled, then give them up."""
        try:
            with Heartbeat(self._bus.another(), self._name) as heartbeat:
                works = self._watch_leases, self._watch_fabric, self._share_traffic, self._tend
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._turn(heartbeat))
                    for work in works:
                        tasks.create_task(for_ever(work))
        finally:
            for attempt in list(self._following):
                with suppress(*FAILURES):
                    await self._give_up(attempt)

    async def _turn(self, heartbeat: Heartbeat) -> None:
        """Have the heartbeat say that we are there, and what was dropped here."""
        while True:
            self._dropped[SOURCE] = self._bus.incoming.left_out
            dropped = {host: dict(reasons) for host, reasons in self._dropped.items() if reasons}
            heartbeat.turn(HeldLease(self._name, dropped=dropped))
            await asyncio.sleep(_LOOK_S)

    async def _watch_leases(self) -> None:
        if self._reconnects != self._bus.reconnects:
            self._reconnects = self._bus.reconnects
            for renewals in (self._renewals, self._detectors):
                renewals.restart(time.monotonic())
        for stored in await self._leases.read(_LOOK_S):
            key = stored.subject.split(".", 2)[2]
            if (held := read_lease(self._bus, stored)) is None:
                continue
            renewals = self._detectors if key.startswith(DETECTOR) else self._renewals
            renewals.renewed(key, stored.sequence, held, time.monotonic())
        self._leases_known = self._leases_known or self._leases.caught_up

    async def _watch_fabric(self) -> None:
        own = token(self._name)
        for stored in await self._shared.read(_LOOK_S):
            if stored.subject.endswith(f".{own}"):
                continue
            record = self._bus.incoming.decoded(SHARED, stored.subject, stored.body)
            if record is not None:
                self._judges.share(record)

    async def _share_traffic(self) -> None:
        """Publish which jobs of ours have begun to carry, and what they carry: it may slow down others."""
        await asyncio.sleep(_LOOK_S)
        for traffic in self._judges.traffic():
            subject = self._bus.subjects.shared("traffic", self._name)
            await self._bus.client.publish(subject, msgspec.msgpack.encode(traffic))

    async def _renew(self) -> None:
        """Renew our leases; a job whose lease is not ours any more, or may not be, is not judged here."""
        if time.monotonic() - self._renewed_s < RENEWED_EVERY_S:
            return
        self._renewed_s = time.monotonic()
        ours = list(self._following.items())
        written = await asyncio.gather(*(self._written(following) for _, following in ours))
        for (attempt, following), renewed in zip(ours, written, strict=True):
            if not following.current(renewed):
                _logger.warning("%s: another detector has taken it over", attempt, extra={"attempt": attempt})
                await self._following.pop(attempt).stop()

    async def _written(self, following: _Following) -> bool | None:
        """Whether the lease was renewed; None if it is not known."""
        try:
            return await following.lease.write(following.follower.progress(self._name))
        except FAILURES:
            return None

    async def _tend(self) -> None:
        """Renew our leases, give up what is too much for us or has ended, and take what nobody judges.

        One after the other, so that each lease is written by one of these at a time.
        """
        await self._renew()
        await self._jobs.read(_TEND_S)
        if not (self._leases_known and self._jobs.known):
            return
        for attempt in [attempt for attempt, following in self._following.items() if following.task.done()]:
            _report(attempt, self._following[attempt].task)
            await self._give_up(attempt)
        for attempt, following in list(self._following.items()):
            if self._jobs.entries.get(attempt, (0,))[0] != following.revision:
                await self._following.pop(attempt).stop()
                await following.lease.remove()
        others = self._detectors.live(DETECTOR, time.monotonic()).keys() - {heartbeat_key(self._name)}
        share = fair_share(len(self._jobs.entries), 1 + len(others))
        for attempt in list(self._following)[share:]:
            await self._give_up(attempt)
        free = [job for job in self._jobs.entries.items() if job[0] not in self._following and self._free(job[0])]
        more = max(0, share - len(self._following))
        await asyncio.gather(*(self._acquire(attempt, *entered) for attempt, entered in free[:more]))

    def _free(self, attempt: str) -> bool:
        key = f"{JOB}{token(attempt)}"
        holder = self._renewals.holder(key)
        return not holder or self._renewals.ended(key, time.monotonic()) or self._silent(holder)

    def _silent(self, holder: str) -> bool:
        return self._detectors.ended(heartbeat_key(holder), time.monotonic())

    async def _gone(self, holder: str) -> bool:
        """Whether a detector has been silent, and not only we slow to hear it."""
        return self._silent(holder) and not await Lease(self._bus, heartbeat_key(holder)).written_since(self._detectors)

    async def _acquire(self, attempt: str, revision: int, entry: JobEntry) -> None:
        """Take a job that is free, unless another detector does. What fails because of the bus is tried again later."""
        lease = Lease(self._bus, f"{JOB}{token(attempt)}")

        def ours(held: HeldLease | None) -> HeldLease:
            of_this_entry = held if held is not None and held.job == revision else HeldLease("", revision)
            return msgspec.structs.replace(of_this_entry, holder=self._name)

        with suppress(*FAILURES):
            gone = await self._gone(self._renewals.holder(lease.key))
            if (held := await lease.acquire(self._renewals, ours, gone=gone)) is not None:
                judge = self._judges.judge(entry.spec, self._dropped)
                follower = JobFollower(self._bus, entry, judge, self._dropped, held, self._catching_up)
                self._following[attempt] = _Following(lease, revision, follower)
                _logger.info("%s: judged here now", attempt, extra={"attempt": attempt})

    async def _give_up(self, attempt: str) -> None:
        """Let another detector have a job."""
        following = self._following.pop(attempt)
        await following.stop()
        await following.lease.write(following.follower.progress(""))
        _logger.info("%s: given up to another detector", attempt, extra={"attempt": attempt})


def _report(attempt: str, task: asyncio.Task[None]) -> None:
    """Report why a job is no longer followed."""
    failure = task.exception()
    report_bug(f"{attempt} is followed no more: {type(failure).__name__}: {failure}", failure)
