"""Leases: who has a job, or leads, until it is no longer renewed.

A lease is a key of the key-value store. Its holder writes it again several times before it ends; others watch that.
Each judges by its own clock how long nothing was written, so no clocks are compared. Who takes a lease states the
revision that it saw: of two that try, the store refuses one, and it refuses a former holder that wakes up.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Self

import msgspec

from c4bench.budget import BUS_VALUE
from c4bench.bus.connection import Bus, OutdatedError, Stored, cancelled, for_ever, opened
from c4bench.bus.incoming import COUNT_AT_MOST, TIME_AT_MOST_S, MessageKind, decoded
from c4bench.bus.subjects import bucket_key, bucket_stream, token
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Component

RENEWED_EVERY_S = 0.25
ENDS_AFTER_S = 1.0
# Clocks of several servers of a bus differ by less (s).
_AHEAD_S = 10.0
DETECTOR = "detector."
# Who was not heard of for so long (s) is gone: several times as long as between two writes.
GONE_AFTER_S = 0.5
_EVERY_S = 0.1
# A loop that has not turned for so long is stuck (s).
_STUCK_AFTER_S = 0.5
# So often a lease is written over what is none, before it is given up.
_ATTEMPTS = 3
_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_AT_MOST)]
_Time = Annotated[float, msgspec.Meta(ge=0.0, le=TIME_AT_MOST_S)]


class HeldLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lease's value: its holder ("" if it was given up), and for a job up to when it is judged.

    `judged_s` is the server's time up to which all findings have been published, 0 before the first; whoever goes on
    from there reads `memory_s` more before it. `newest` are the numbers of the hosts' newest windows that were read.
    `job` is the revision of the job's entry that this is about, `standing` what had been named by `judged_s` and not
    healed. `dropped` counts windows and records by host and reason.
    """

    holder: str
    job: _Count = 0
    judged_s: _Time = 0.0
    memory_s: _Time = 0.0
    newest: dict[str, _Count] = {}
    standing: tuple[Component, ...] = ()
    dropped: dict[str, dict[str, _Count]] = {}


def read_lease(bus: Bus, stored: Stored) -> HeldLease | None:
    """The lease that a message says; None if it was removed, or is none: that is left out."""
    if stored.deleted or not stored.body:
        return None
    return bus.incoming.used(LEASE.name, stored.subject, lambda: _checked(stored))


def _checked(stored: Stored) -> HeldLease:
    """The lease. Raises as `decoded`, also for one up to which nothing can have been judged when it was written."""
    held = decoded(LEASE, stored.body)
    if held.judged_s > stored.at_s + _AHEAD_S:
        raise DecodingError(f"of {stored.at_s:.0f} s, it says that a job is judged up to {held.judged_s:.0f} s")
    return held


LEASE = MessageKind("lease", lambda body: from_json(body, HeldLease), BUS_VALUE)


class Renewals:
    """When each lease was last seen to be renewed, on the observer's monotonic clock (s)."""

    def __init__(self, ends_after_s: float = ENDS_AFTER_S) -> None:
        self._ends_after_s = ends_after_s
        self._seen: dict[str, tuple[float, int, HeldLease]] = {}

    def renewed(self, key: str, revision: int, held: HeldLease, now_s: float) -> None:
        """A lease was written."""
        self._seen[key] = now_s, revision, held

    def restart(self, now_s: float) -> None:
        """Renewals may have been missed until now: nobody is taken to be late."""
        self._seen = {key: (now_s, revision, held) for key, (_, revision, held) in self._seen.items()}

    def ended(self, key: str, now_s: float) -> bool:
        """Whether the lease may be taken: given up, or not renewed for too long. One never seen may not."""
        if key not in self._seen:
            return False
        seen_s, _, held = self._seen[key]
        return not held.holder or now_s - seen_s > self._ends_after_s

    def holder(self, key: str) -> str:
        """Who has the lease; "" if it is not known."""
        return self._seen[key][2].holder if key in self._seen else ""

    def revision(self, key: str) -> int:
        """The newest revision that was seen, 0 if none was."""
        return self._seen[key][1] if key in self._seen else 0

    def live(self, prefix: str, now_s: float) -> dict[str, HeldLease]:
        """The leases of this prefix that are held now, by key."""
        return {
            key: held
            for key, (_, _, held) in self._seen.items()
            if key.startswith(prefix) and held.holder and not self.ended(key, now_s)
        }


class Lease:
    """One lease that we hold, or try to take: a key of a `bucket`, by default that of jobs' leases.

    What is none and was written there is nobody's: whoever has the lease writes it again.
    """

    def __init__(self, bus: Bus, key: str, bucket: str = "") -> None:
        self._bus, self.key, self._bucket = bus, key, bucket or bus.subjects.leases
        self._subject = bucket_key(self._bucket, key)
        self._revision = 0

    async def acquire(
        self, seen: Renewals, change: Callable[[HeldLease | None], HeldLease], *, gone: bool = False
    ) -> HeldLease | None:
        """Take a lease that has ended, by what was `seen`, or whose holder is `gone`; None if it is not ours then.

        Returns its value after `change`. One that was written since is not taken, and neither is one that somebody
        else takes at the same time. Raises one of FAILURES if it is not known whether it is ours.
        """
        revision = seen.revision(self.key)
        before = await self.look()
        if before is not None and before.holder:
            ended = gone or seen.ended(self.key, time.monotonic())
            if not ended or self._revision != revision:
                return None
        after = change(before)
        return after if await self.write(after) else None

    async def written_since(self, seen: Renewals) -> bool:
        """Whether the store has a newer revision than was `seen`: who is slow to read sees renewals late.

        Raises one of FAILURES if that is not known.
        """
        revision = seen.revision(self.key)
        await self.look()
        return self._revision != revision

    async def look(self) -> HeldLease | None:
        """What the store has; None if there is no such lease, or what is none. Raises one of FAILURES."""
        found = await self._bus.last(bucket_stream(self._bucket), self._subject)
        self._revision = found.sequence if found else 0
        return read_lease(self._bus, found) if found else None

    async def write(self, held: HeldLease) -> bool:
        """Take, renew or give up the lease, as it was seen last; False if somebody else has written it since.

        Raises one of FAILURES if it is not known whether it is written.
        """
        for _ in range(_ATTEMPTS):
            try:
                self._revision = await self._bus.publish(self._subject, msgspec.json.encode(held), after=self._revision)
            except OutdatedError:
                found = await self.look()
            else:
                return True
            if found is not None or not self._revision:
                # Ours, if the answer to an earlier write was lost.
                return found is not None and found.holder == held.holder != ""
        return False

    async def remove(self) -> None:
        """Remove a lease that is about nothing any more."""
        await self._bus.purge(bucket_stream(self._bucket), self._subject)


def fair_share(jobs: int, detectors: int) -> int:
    """The most jobs that one detector takes."""
    return -(-jobs // max(1, detectors))


class Heartbeat:
    """Writes the key of the detector called `name` while the context lasts; `bus` is opened on the thread.

    Others soon notice when the detector is not there. Judging blocks its loop for as long as an evaluation takes, and a
    lease that the loop writes is late by that. A thread with a connection of its own is late only where the process
    does not run. It writes only while the loop turns: a detector that is stuck is not there.
    """

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus, self._subject = bus, bucket_key(bus.subjects.leases, heartbeat_key(name))
        self._held, self._turned_s = HeldLease(name), time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="c4bench-heartbeat", daemon=True)
        self._task = self._loop.create_task(self._keep())

    def turn(self, held: HeldLease) -> None:
        """The detector's loop turns, and its key is to say this."""
        self._held, self._turned_s = held, time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _keep(self) -> None:
        while not cancelled():
            with suppress(UnhealthyError):
                async with opened(self._bus):
                    await for_ever(self._write)
            await asyncio.sleep(_EVERY_S)

    async def _write(self) -> None:
        if self._bus.connected and time.monotonic() - self._turned_s < _STUCK_AFTER_S:
            await self._bus.client.publish(self._subject, msgspec.json.encode(self._held))
        await asyncio.sleep(_EVERY_S)


def heartbeat_key(name: str) -> str:
    """The key that a detector writes."""
    return f"{DETECTOR}{token(name)}"
