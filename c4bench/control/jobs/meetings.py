"""Meetings: ranks of several jobs wait for each other, so that what they measure happens together.

An operator puts a job into a meeting and says how many meet. A rank names only the moment, and waits at one at a time:
all that it can occupy here is its own place in its own job's meeting.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

import msgspec

from c4bench.control.jobs.job import Job
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.meeting import Meeting
from c4bench.wire.messages import Meet

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
