"""How the ranks of a job find each other and stop together, and how ranks of several jobs wait for each other.

A rank whose agent lost the master asks again once the master is back. So the answers to the ranks of a running job are
kept, and saved before they are sent: a repeated request is harmless and gets the same answer.

An operator puts a job into a meeting and says how many meet, so that what they measure happens together. A rank names
only the moment, and waits at one at a time: all that it can occupy here is its own place in the meeting of its job.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from c4bench.budget import JOB
from c4bench.control.jobs.job import Job
from c4bench.control.state.store import (
    CommunicatorEnded,
    CommunicatorFailure,
    FinishedExchange,
    JobEntry,
    RelayedMessage,
    Store,
)
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.telemetry import Failure
from c4bench.wire.messages import Exchange, Exchanged, Fail, InboxBatch, Meet, Meeting, PollInbox, RelayMessage, Seats
from c4bench.wire.peer import ABANDONED

_logger = logging.getLogger(__name__)

# Of each job, since a hostile rank may make up names and messages. A job of 10,000 ranks in 1,000 communicators needs a
# tenth of these, and relays some kilobytes for each failure.
_COMMS_AT_MOST = 16_384
_SEATS_AT_MOST = JOB.records
_COMMS_IN_ALL_AT_MOST = 262_144
_GATHERINGS_AT_MOST = 65_536  # of all jobs
_PENDING_AT_MOST_BYTES = 256 << 20
_RELAYED_AT_MOST_BYTES = JOB.bytes
# Answers kept of each job. A rank without an answer delays its communicator, so its answer is among the latest.
_ANSWERS_KEPT = 1024
_ANSWERS_KEPT_BYTES = JOB.bytes

_Comm = tuple[str, str, Seats]  # job, communicator
_Name = tuple[_Comm, str, int]  # communicator, key, size


class _Answers:
    """The newest answers to a job's ranks, by exchange."""

    def __init__(self) -> None:
        self._kept: dict[_Name, Exchanged] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: _Name) -> Exchanged | None:
        """An answer that is kept."""
        return self._kept.get(name)

    def keep(self, name: _Name, answer: Exchanged) -> None:
        """Keep an answer, and forget the oldest: the newest stays whatever its size."""
        self._kept[name] = answer
        self._size_bytes += _size_bytes(answer)
        while len(self._kept) > _ANSWERS_KEPT or (self._size_bytes > _ANSWERS_KEPT_BYTES and len(self._kept) > 1):
            self._size_bytes -= _size_bytes(self._kept.pop(next(iter(self._kept))))


def _size_bytes(answer: Exchanged) -> int:
    return sum(map(len, answer.payloads))


class _Gathering(msgspec.Struct):
    """An exchange that not all ranks have joined; `calls` counts the calls that wait for it, by rank."""

    ended: asyncio.Future[Exchanged]
    payloads: dict[int, bytes] = {}
    calls: Counter[int] = msgspec.field(default_factory=Counter)


class RendezvousService:
    """Pending exchanges, messages and failures of every communicator, and the answers to running jobs."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or Store(None)
        self._gatherings: dict[_Name, _Gathering] = {}
        self._failures: dict[_Comm, asyncio.Future[Failure]] = {}
        self._answered: dict[str, _Answers] = {}
        self._messages: dict[_Comm, list[RelayMessage]] = {}
        self._arrived: dict[_Comm, asyncio.Event] = {}
        # How many calls watch each communicator, and which ranks follow its messages.
        self._watching: Counter[_Comm] = Counter()
        self._following: dict[_Comm, set[int]] = {}
        self._comms: dict[str, int] = {}
        self._seats: Counter[str] = Counter()
        self._relayed_bytes: Counter[str] = Counter()
        self._pending_bytes: Counter[str] = Counter()

    def admit(self, job: str, saved: Iterable[JobEntry] = ()) -> None:
        """Keep answers to this job's ranks from now on; `saved` is what an earlier master has saved."""
        answered = self._answered.setdefault(job, _Answers())
        for entry in saved:
            if isinstance(entry, FinishedExchange):
                size = entry.size or len(entry.exchanged.payloads)
                answered.keep(((job, entry.comm, entry.seats), entry.key, size), entry.exchanged)
            elif isinstance(entry, CommunicatorFailure):
                self._set_failure(entry.fail)
            elif isinstance(entry, RelayedMessage):
                self._relayed_bytes[job] += len(entry.word.body)
                self._messages.setdefault((job, entry.word.comm, entry.word.seats), []).append(entry.word)
            elif isinstance(entry, CommunicatorEnded):
                self._forget_messages((job, entry.comm, entry.seats))

    async def exchange(self, request: Exchange) -> Exchanged:
        """Wait for the other ranks of the key. The first timeout of any rank ends it for all that wait."""
        comm = request.job, request.comm, request.seats
        name = comm, request.key, request.size
        answered = self._answered.get(request.job)
        if answered is not None and (answer := answered.get(name)) is not None:
            return answer
        failure = self._failure(comm)
        if not 0 <= request.rank < request.size:
            raise UnhealthyError(f"rank {request.rank} of {request.size} is none; the program is wrong")
        self._limit(request.job, "exchanges", len(self._gatherings), _GATHERINGS_AT_MOST)
        gathering = self._join(name, request)
        either: set[asyncio.Future[Any]] = {gathering.ended, failure}
        try:
            await asyncio.wait(either, timeout=request.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(name, gathering, request.rank)
            self._drop_unwatched(comm)
            raise
        if gathering.ended.cancelled() or failure.cancelled():
            raise UnhealthyError(f"job {request.job} has ended")
        if not gathering.ended.done():
            missing = tuple(sorted(set(range(request.size)) - set(gathering.payloads)))
            self._end(name, Exchanged(failure=failure.result()) if failure.done() else Exchanged(missing=missing))
        self._drop_unwatched(comm)
        return gathering.ended.result()

    async def gather(self, request: Exchange) -> tuple[bytes, ...]:
        """Exchange and return each rank's payload. Raises UnhealthyError if ranks are missing at the timeout."""
        answer = await self.exchange(request)
        if answer.missing:
            place = f"{request.key!r} of {request.job}"
            raise UnhealthyError(f"ranks {list(answer.missing)} did not come to {place} in {request.timeout_s:g} s")
        return answer.payloads

    def _join(self, name: _Name, request: Exchange) -> _Gathering:
        gathering = self._gatherings.get(name) or _Gathering(asyncio.get_running_loop().create_future())
        added = len(request.payload) - len(gathering.payloads.get(request.rank, b""))
        self._limit(request.job, "bytes in exchanges", self._pending_bytes[request.job] + added, _PENDING_AT_MOST_BYTES)
        self._pending_bytes[request.job] += added
        self._gatherings[name] = gathering
        gathering.payloads[request.rank] = request.payload
        gathering.calls[request.rank] += 1
        if len(gathering.payloads) == request.size:
            self._end(name, Exchanged(tuple(gathering.payloads[rank] for rank in range(request.size))))
        return gathering

    def _leave(self, name: _Name, gathering: _Gathering, rank: int) -> None:
        """Forget a rank whose connection has closed, unless it has asked again on another one."""
        if self._gatherings.get(name) is not gathering:
            return
        gathering.calls[rank] -= 1
        if gathering.calls[rank] == 0:
            self._pending_bytes[name[0][0]] -= len(gathering.payloads.pop(rank))
        if not gathering.payloads:
            self._drop(name).ended.cancel()

    def _end(self, name: _Name, answer: Exchanged) -> None:
        (job, comm, seats), key, size = name
        if job in self._answered:
            self._answered[job].keep(name, answer)
            self._store.append(job, FinishedExchange(comm, key, answer, seats, size))
        self._drop(name).ended.set_result(answer)

    def _drop(self, name: _Name) -> _Gathering:
        gathering = self._gatherings.pop(name)
        self._pending_bytes[name[0][0]] -= sum(map(len, gathering.payloads.values()))
        return gathering

    def _failure(self, comm: _Comm) -> asyncio.Future[Failure]:
        if comm not in self._failures:
            job, seats = comm[0], self._seats[comm[0]] + len(comm[2])
            known = self._comms.setdefault(job, 0)
            self._limit(job, "seats of communicators", seats, _SEATS_AT_MOST)
            self._limit(job, "communicators", known, _COMMS_AT_MOST)
            self._limit(job, "communicators, with all other jobs,", len(self._failures), _COMMS_IN_ALL_AT_MOST)
            self._comms[job], self._seats[job] = known + 1, seats
        return self._failures.setdefault(comm, asyncio.get_running_loop().create_future())

    def fail(self, request: Fail) -> None:
        """Notify all that wait for or watch this communicator, now and later. Only the first failure counts."""
        if not self._set_failure(request):
            return
        values = (request.job, request.failure.rank, request.comm, request.failure.reason)
        fields = {"attempt": request.job, "rank": request.failure.rank, "communicator": request.comm}
        _logger.warning("%s: rank %d aborted communicator %s: %s", *values, extra=fields)
        if request.job in self._answered:
            self._store.append(request.job, CommunicatorFailure(request))

    def _set_failure(self, request: Fail) -> bool:
        failure = self._failure((request.job, request.comm, request.seats))
        if failure.done():
            return False
        failure.set_result(request.failure)
        return True

    async def watch(self, job: str, name: str, seats: Seats = ()) -> Failure:
        """Wait for the communicator's first failure. One that is well and that nobody watches any more is forgotten."""
        comm = job, name, seats
        failure = self._failure(comm)
        self._watching[comm] += 1
        try:
            # Shielded, because a watcher that is cancelled must not cancel the future that others await.
            return await asyncio.shield(failure)
        finally:
            self._watching[comm] -= 1
            self._drop_unwatched(comm)

    def _drop_unwatched(self, comm: _Comm) -> None:
        if self._watching[comm] or any(name[0] == comm for name in self._gatherings):
            return
        del self._watching[comm]
        if comm in self._failures and not self._failures[comm].done():
            del self._failures[comm]
            self._comms[comm[0]] -= 1
            self._seats[comm[0]] -= len(comm[2])

    def relay(self, request: RelayMessage) -> None:
        """Keep a rank's message to others of its communicator, and wake those that poll."""
        name = (request.job, request.comm, request.seats)
        kept = self._relayed_bytes[request.job] + len(request.body)
        self._limit(request.job, "bytes of messages", kept, _RELAYED_AT_MOST_BYTES)
        self._relayed_bytes[request.job] = kept
        self._messages.setdefault(name, []).append(request)
        if request.job in self._answered:
            self._store.append(request.job, RelayedMessage(request))
        self._arrived.pop(name, asyncio.Event()).set()

    async def poll(self, request: PollInbox) -> InboxBatch:
        """Wait for messages to a rank since its last poll. Raises UnhealthyError when the job ends.

        Once all ranks that have polled have abandoned their polls, the communicator's messages are forgotten.
        """
        name = (request.job, request.comm, request.seats)
        self._following.setdefault(name, set()).add(request.rank)
        try:
            return await self._poll(name, request)
        except asyncio.CancelledError as cancelled:
            # A connection that is lost comes back, and its ranks poll again from where they were.
            if cancelled.args == (ABANDONED,):
                self._unfollow(name, request.rank)
            raise

    def _unfollow(self, name: _Comm, rank: int) -> None:
        following = self._following.get(name, set())
        following.discard(rank)
        if not following:
            self._following.pop(name, None)
            self._arrived.pop(name, None)
            if self._forget_messages(name) and name[0] in self._answered:
                self._store.append(name[0], CommunicatorEnded(name[1], name[2]))

    def _forget_messages(self, name: _Comm) -> bool:
        """Whether there were any."""
        forgotten = self._messages.pop(name, [])
        self._relayed_bytes[name[0]] -= sum(len(message.body) for message in forgotten)
        return bool(forgotten)

    async def _poll(self, name: _Comm, request: PollInbox) -> InboxBatch:
        while True:
            messages = self._messages.get(name, [])
            new = messages[request.after :]
            mine = tuple(
                message.body for message in new if message.sender != request.rank and message.to in (request.rank, -1)
            )
            if mine:
                return InboxBatch(mine, len(messages))
            arrived = self._arrived.setdefault(name, asyncio.Event())
            await arrived.wait()
            if name not in self._messages:
                raise UnhealthyError(f"job {request.job} has ended")

    @staticmethod
    def _limit(job: str, what: str, number: int, at_most: int) -> None:
        if number >= at_most:
            raise UnhealthyError(f"job {job} has {at_most} {what} already, and may have no more")

    def forget(self, job: str) -> None:
        """Drop everything that is pending for a job that has ended."""
        self._comms.pop(job, None)
        self._seats.pop(job, None)
        self._relayed_bytes.pop(job, None)
        for comm in [comm for comm in self._messages if comm[0] == job]:
            del self._messages[comm]
        for comm in [comm for comm in self._following if comm[0] == job]:
            del self._following[comm]
        for comm in [comm for comm in self._arrived if comm[0] == job]:
            self._arrived.pop(comm).set()
        for name in [name for name in self._gatherings if name[0][0] == job]:
            self._drop(name).ended.cancel()
        self._pending_bytes.pop(job, None)
        self._answered.pop(job, None)
        for comm in [comm for comm in self._failures if comm[0] == job]:
            self._failures.pop(comm).cancel()


_MOMENT_AT_MOST = 128  # characters
_WITHIN_S = 300.0

_Member = tuple[str, int]  # job, rank
_Place = tuple[str, str]  # meeting, moment


class _Waiting(msgspec.Struct):
    """The members that wait at a moment; `calls` counts the calls of each, since a rank may have asked again."""

    complete: asyncio.Future[None]
    calls: Counter[_Member] = msgspec.field(default_factory=Counter)


class Meetings:
    """Who waits at which moment; `jobs` has the running attempts by ID."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._waiting: dict[_Place, _Waiting] = {}
        self._place: dict[_Member, _Place] = {}
        # By meeting, the moment that was complete last: a member whose answer was lost asks again. No later one can be
        # complete without it.
        self._passed: dict[str, str] = {}

    async def join(self, request: Meet) -> None:
        """Wait as a rank until all members have come. Raises UnhealthyError if they do not, or if the rank may not."""
        job = self._jobs.get(request.job)
        if job is None or job.spec.meeting is None:
            raise UnhealthyError(f"job {request.job} is in no meeting; start it with one")
        await self._wait(job.spec.meeting, (request.job, request.rank), request.moment)

    async def attend(self, name: str, moment: str) -> None:
        """Wait as the test, which is one of the members. Raises UsageError if no running job is in that meeting."""
        meeting = self._running().get(name)
        if meeting is None:
            raise UsageError(f"no running job is in the meeting {name!r}; start one first")
        await self._wait(meeting, ("", 0), moment)

    async def _wait(self, meeting: Meeting, member: _Member, moment: str) -> None:
        if len(moment) > _MOMENT_AT_MOST:
            raise UnhealthyError(f"a moment's name has {_MOMENT_AT_MOST} characters at most, and not {len(moment)}")
        if self._passed.get(meeting.name) == moment:
            return
        place = (meeting.name, moment)
        waiting = self._arrive(place, member, meeting.size)
        try:
            await asyncio.wait((waiting.complete,), timeout=_WITHIN_S)
            came = len(waiting.calls)
        finally:
            self._leave(place, waiting, member)
        if waiting.complete.cancelled():
            raise UnhealthyError(f"a job of the meeting {meeting.name!r} has ended")
        if not waiting.complete.done():
            of = f"{moment!r} of the meeting {meeting.name!r}"
            raise UnhealthyError(
                f"{came} of {meeting.size} came to {of} in {_WITHIN_S:g} s; the others are late or gone"
            )

    def _arrive(self, place: _Place, member: _Member, size: int) -> _Waiting:
        elsewhere = self._place.setdefault(member, place)
        if elsewhere != place:
            raise UnhealthyError(
                f"rank {member[1]} of job {member[0]} waits at {elsewhere[1]!r}; it can wait at one moment"
            )
        waiting = self._waiting.setdefault(place, _Waiting(asyncio.get_running_loop().create_future()))
        waiting.calls[member] += 1
        if len(waiting.calls) == size:
            self._passed[place[0]] = place[1]
            self._end(place).set_result(None)
        return waiting

    def _leave(self, place: _Place, waiting: _Waiting, member: _Member) -> None:
        """Forget a call that waits no longer; its rank may have asked again on another connection."""
        if self._waiting.get(place) is not waiting:
            return
        waiting.calls[member] -= 1
        if waiting.calls[member] == 0:
            del waiting.calls[member], self._place[member]
        if not waiting.calls:
            del self._waiting[place]

    def _end(self, place: _Place) -> asyncio.Future[None]:
        waiting = self._waiting.pop(place)
        for member in waiting.calls:
            del self._place[member]
        return waiting.complete

    def forget(self, meeting: Meeting) -> None:
        """End what waits in a meeting of which a job has ended; forget it all once no job of it runs."""
        for place in [place for place in self._waiting if place[0] == meeting.name]:
            self._end(place).cancel()
        if meeting.name not in self._running():
            self._passed.pop(meeting.name, None)

    def _running(self) -> dict[str, Meeting]:
        meetings = (job.spec.meeting for job in self._jobs.values())
        return {meeting.name: meeting for meeting in meetings if meeting}
