"""Results of a job's ranks, for those that wait for them."""

import asyncio

import pytest

from c4bench.control.jobs.job import Job
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import Member, RankRecord
from c4bench.wire.messages import JobSpec, Result

SPEC = JobSpec("j", "draws", tuple(Member(rank, f"h{rank}", ()) for rank in range(2)), ())


def ended(rank, state="killed", code=-9):
    return RankRecord("j", rank, f"h{rank}", 100, state, code)


def scene(*steps):
    """Wait for two `done` results while these steps run."""

    async def play():
        job = Job(SPEC)
        waiting = asyncio.create_task(job.wait("done", 2, 60.0))
        for step in steps:
            await asyncio.sleep(0)
            await step(job)
        return await waiting

    return asyncio.run(asyncio.wait_for(play(), 10))


def sends(rank, kind="done", **rest):
    return lambda job: job.add(Result("j", rank, {"kind": kind, "from": rank} | rest))


def test_results_come_in_rank_order():
    """Results are in rank order whichever rank reports first, even if a rank exits afterwards."""
    results = scene(sends(1), lambda job: job.note_ranks([ended(1, "exited", 0)]), sends(0))
    assert [result["from"] for result in results] == [0, 1]


def test_a_rank_that_ends_without_a_result_is_named_at_once():
    """A rank whose process ends before its result is an error with host and exit code, not a timeout."""
    with pytest.raises(UnhealthyError, match="rank 1: killed on h1 with code -9 before it sent a result 'done'"):
        scene(sends(0), lambda job: job.note_ranks([ended(1)]))


def test_a_reported_error_is_raised_in_the_ranks_words():
    """An error that a rank reports is raised instead of the end of its process."""
    with pytest.raises(UnhealthyError, match="rank 0: no NIC"):
        scene(sends(0, "error", error="no NIC"), lambda job: job.note_ranks([ended(0, "exited", 2)]))


def progress(first, ended_ranks, *steps):
    """What is new since report `first` and these ended ranks, while these steps run."""

    async def play():
        job = Job(SPEC)
        waiting = asyncio.create_task(job.progress(first, ended_ranks, 0.5))
        for step in steps:
            await asyncio.sleep(0)
            await step(job)
        return await waiting

    return asyncio.run(asyncio.wait_for(play(), 10))


def test_progress_is_what_is_new():
    """Reports from the named one on, in the order of arrival; an ended rank with its code; nothing after the time."""
    both = progress(1, 0, sends(1), sends(0, "later"))
    assert ([report.rank for report in both.reports], both.exits, both.ranks) == ([0], {}, 2)
    ending = progress(0, 0, lambda job: job.note_ranks([ended(1)]))
    assert (ending.reports, ending.exits, ending.attempt) == ((), {1: -9}, "j")
    known = progress(1, 1, sends(0), lambda job: job.note_ranks([ended(1)]))
    assert (known.reports, known.exits) == ((), {1: -9})
