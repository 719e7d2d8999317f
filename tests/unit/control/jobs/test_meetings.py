"""Ranks of several jobs wait for each other, and none of them can occupy more than its own place."""

import asyncio

import pytest

from c4bench.control.jobs import rendezvous as meetings
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.rendezvous import Meetings
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.telemetry import Member
from c4bench.wire.messages import JobSpec, Meet, Meeting

MEETING = Meeting("m", 3)


def running(*names, meeting=MEETING):
    """Running jobs of two ranks that are in this meeting."""
    members = tuple(Member(rank, f"h{rank}", ()) for rank in range(2))
    return {name: Job(JobSpec(name, "none", members, (), meeting=meeting)) for name in names}


def play(scene):
    """Run a scene with the meetings of jobs a and b."""
    jobs = running("a", "b")
    return asyncio.run(asyncio.wait_for(scene(Meetings(jobs), jobs), 20))


def start(service, *places):
    """Tasks of ranks that come to a moment; each place is a job, a rank and the moment's name."""
    return [asyncio.create_task(service.join(Meet(*place))) for place in places]


def left(service):
    """Everything that the service holds."""
    return service._waiting, service._place, service._passed


def test_all_members_pass_a_moment_together():
    """Nobody passes before the last has come; then all do, and the next moment is a new one. The test may be one."""

    async def scene(service, _):
        for moment in ("one", "two"):
            early = start(service, ("a", 0, moment), ("b", 1, moment))
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in early)
            await service.attend("m", moment)
            await asyncio.gather(*early)

    play(scene)


def test_a_member_asks_again_for_a_moment_that_is_complete():
    """An answer that was lost comes again at once, for the newest moment: the next waits for this member."""

    async def scene(service, _):
        await asyncio.gather(*start(service, ("a", 0, "one"), ("a", 1, "one"), ("b", 0, "one")))
        await service.join(Meet("a", 0, "one"))
        waiting = start(service, ("a", 1, "two"), ("b", 0, "two"))
        await service.join(Meet("a", 0, "one"))
        await service.join(Meet("a", 0, "two"))
        await asyncio.gather(*waiting)

    play(scene)


def test_a_rank_waits_at_one_moment_at_a_time():
    """A second moment and a name without bound are refused: all that a rank can hold is one short name."""

    async def scene(service, _):
        waiting = start(service, ("a", 0, "one"))
        await asyncio.sleep(0)
        for number in range(100):
            with pytest.raises(UnhealthyError, match="rank 0 of job a waits at 'one'; it can wait at one moment"):
                await service.join(Meet("a", 0, f"other{number}"))
        with pytest.raises(UnhealthyError, match="has 128 characters at most, and not 129"):
            await service.join(Meet("a", 1, "x" * 129))
        assert [len(kept) for kept in left(service)] == [1, 1, 0]
        waiting[0].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    play(scene)


def test_a_rank_that_comes_twice_counts_once():
    """A rank that asks on two connections takes one place, and keeps it until both are closed."""

    async def scene(service, _):
        first, again = start(service, ("a", 0, "one"), ("a", 0, "one"))
        await asyncio.sleep(0)
        first.cancel()
        others = start(service, ("a", 1, "one"))
        await asyncio.sleep(0.01)
        assert not again.done()
        await service.join(Meet("b", 0, "one"))
        await asyncio.gather(again, *others)

    play(scene)


def test_a_rank_whose_connection_closes_leaves_nothing():
    """What cancelled calls held is free at once, and the rank may come to another moment."""

    async def scene(service, _):
        tasks = start(service, ("a", 0, "one"), ("a", 1, "one"))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert left(service) == ({}, {}, {})
        await asyncio.gather(*start(service, ("a", 0, "two"), ("a", 1, "two"), ("b", 0, "two")))

    play(scene)


def test_members_that_do_not_come_are_counted(monkeypatch):
    """After the time that a moment may take, those that wait get an error with how many came; nothing stays."""
    monkeypatch.setattr(meetings, "_WITHIN_S", 0.05)

    async def scene(service, _):
        answers = await asyncio.gather(*start(service, ("a", 0, "one"), ("b", 0, "one")), return_exceptions=True)
        assert left(service) == ({}, {}, {})
        return [str(answer) for answer in answers]

    assert "2 of 3 came to 'one' of the meeting 'm' in 0.05 s" in play(scene)[0]


def test_the_end_of_a_job_ends_its_meeting():
    """Who waits for a job that has ended gets an error at once; once no job of it runs the meeting is forgotten."""

    async def scene(service, jobs):
        await asyncio.gather(*start(service, ("a", 0, "one"), ("a", 1, "one"), ("b", 0, "one")))
        waiting = start(service, ("a", 0, "two"), ("b", 0, "two"))
        await asyncio.sleep(0)
        del jobs["b"]
        service.forget(MEETING)
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert str(answer) == "a job of the meeting 'm' has ended"
        assert left(service) == ({}, {}, {"m": "one"})
        del jobs["a"]
        service.forget(MEETING)
        assert left(service) == ({}, {}, {})

    play(scene)


def test_only_a_job_in_a_meeting_has_members():
    """A job whose operator has put it into no meeting meets nobody; nor does the test where no job is in it."""

    async def scene():
        service = Meetings(running("alone", meeting=None))
        with pytest.raises(UnhealthyError, match="job alone is in no meeting"):
            await service.join(Meet("alone", 0, "one"))
        with pytest.raises(UsageError, match="no running job is in the meeting 'm'"):
            await service.attend("m", "one")
        assert left(service) == ({}, {}, {})

    asyncio.run(scene())
