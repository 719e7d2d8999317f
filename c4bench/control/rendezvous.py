"""All-gather by name, and word of failures: how the ranks of a job find each other and stop together.

A rank whose agent lost the master asks again once it is back. So what a running job's ranks have been answered, or are
about to be, is kept and written down first: to ask again is harmless, and gives the same answer.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from c4bench.control.store import CommunicatorFailure, Entry, FinishedExchange, RelayedMessage, Store
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import Failure
from c4bench.wire.messages import Exchange, Exchanged, Fail, InboxBatch, PollInbox, RelayMessage

_logger = logging.getLogger(__name__)

# Of each job: a rank that still lacks an answer holds its communicator up, so it is among the latest.
_REMEMBERED = 1024

_Comm = tuple[str, str]  # job, communicator
_Name = tuple[str, str, str]  # job, communicator, key


class _Gathering(msgspec.Struct):
    """An exchange that not all have come to."""

    ended: asyncio.Future[Exchanged]
    given: dict[int, bytes] = {}


class RendezvousService:
    """Pending exchanges and failures of every job's communicators, and the answers given to jobs that run."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or Store(None)
        self._gatherings: dict[_Name, _Gathering] = {}
        self._failures: dict[_Comm, asyncio.Future[Failure]] = {}
        self._answered: dict[str, dict[tuple[str, str], Exchanged]] = {}
        self._words: dict[_Comm, list[RelayMessage]] = {}
        self._news: dict[_Comm, asyncio.Event] = {}

    def admit(self, job: str, before: Iterable[Entry] = ()) -> None:
        """Remember answers to this job's ranks from now on; `before` is what an earlier master has written down."""
        known = self._answered.setdefault(job, {})
        for entry in before:
            if isinstance(entry, FinishedExchange):
                known[entry.comm, entry.key] = entry.exchanged
            elif isinstance(entry, CommunicatorFailure):
                self._ring(entry.fail)
            elif isinstance(entry, RelayedMessage):
                self._words.setdefault((job, entry.word.comm), []).append(entry.word)

    async def exchange(self, request: Exchange) -> Exchanged:
        """Wait for the other ranks of the key. When the time of any is over, it is over for all who wait."""
        known = self._answered.get(request.job, {}).get((request.comm, request.key))
        if known is not None:
            return known
        name = (request.job, request.comm, request.key)
        failure = self._failure(request.job, request.comm)
        gathering = self._gatherings.setdefault(name, _Gathering(asyncio.get_running_loop().create_future()))
        gathering.given[request.rank] = request.payload
        if len(gathering.given) == request.size:
            self._end(name, Exchanged(tuple(gathering.given[rank] for rank in range(request.size))))
        either: set[asyncio.Future[Any]] = {gathering.ended, failure}
        await asyncio.wait(either, timeout=request.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if gathering.ended.cancelled() or failure.cancelled():
            raise UnhealthyError(f"job {request.job} has ended")
        if not gathering.ended.done():
            missing = tuple(sorted(set(range(request.size)) - set(gathering.given)))
            self._end(name, Exchanged(failure=failure.result()) if failure.done() else Exchanged(missing=missing))
        return gathering.ended.result()

    def _end(self, name: _Name, how: Exchanged) -> None:
        job, comm, key = name
        if job in self._answered:
            known = self._answered[job]
            if len(known) == _REMEMBERED:
                del known[next(iter(known))]
            known[comm, key] = how
            self._store.append(job, FinishedExchange(comm, key, how))
        self._gatherings.pop(name).ended.set_result(how)

    def _failure(self, job: str, comm: str) -> asyncio.Future[Failure]:
        return self._failures.setdefault((job, comm), asyncio.get_running_loop().create_future())

    def fail(self, request: Fail) -> None:
        """Tell everybody who waits for or watches this communicator, now and later. Only the first failure counts."""
        if not self._ring(request):
            return
        said = (request.job, request.failure.rank, request.comm, request.failure.reason)
        fields = {"attempt": request.job, "rank": request.failure.rank, "communicator": request.comm}
        _logger.warning("%s: rank %d aborted communicator %s: %s", *said, extra=fields)
        if request.job in self._answered:
            self._store.append(request.job, CommunicatorFailure(request))

    def _ring(self, request: Fail) -> bool:
        failure = self._failure(request.job, request.comm)
        if failure.done():
            return False
        failure.set_result(request.failure)
        return True

    async def watch(self, job: str, comm: str) -> Failure:
        """The communicator's first failure, once there is one."""
        # Shielded: a watcher that goes away must not take the others' future with it.
        return await asyncio.shield(self._failure(job, comm))

    def word(self, request: RelayMessage) -> None:
        """Keep what one rank has to say to others of its communicator, and wake those who wait for news."""
        name = (request.job, request.comm)
        self._words.setdefault(name, []).append(request)
        if request.job in self._answered:
            self._store.append(request.job, RelayedMessage(request))
        self._news.pop(name, asyncio.Event()).set()

    async def news(self, request: PollInbox) -> InboxBatch:
        """What was said to a rank since it last asked, as soon as there is any. UnhealthyError when the job ends."""
        name = (request.job, request.comm)
        while True:
            words = self._words.get(name, [])
            new = words[request.after :]
            mine = tuple(word.body for word in new if word.sender != request.rank and word.to in (request.rank, -1))
            if mine:
                return InboxBatch(mine, len(words))
            news = self._news.setdefault(name, asyncio.Event())
            await news.wait()
            if name not in self._words:
                raise UnhealthyError(f"job {request.job} has ended")

    def forget(self, job: str) -> None:
        """Drop what a job that has ended left pending."""
        self._answered.pop(job, None)
        for comm in [comm for comm in self._words if comm[0] == job]:
            del self._words[comm]
        for comm in [comm for comm in self._news if comm[0] == job]:
            self._news.pop(comm).set()
        for name in [name for name in self._gatherings if name[0] == job]:
            self._gatherings.pop(name).ended.cancel()
        for comm in [comm for comm in self._failures if comm[0] == job]:
            self._failures.pop(comm).cancel()
