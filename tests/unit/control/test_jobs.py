"""What the master knows of a job, and what it tells those who wait for results."""

import asyncio

import pytest

from c4bench.control.jobs import Job
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import Member, RankRecord
from c4bench.wire.messages import JobSpec, Result

SPEC = JobSpec("j", "draws", tuple(Member(rank, f"h{rank}", ()) for rank in range(2)), ())


def ended(rank, state="killed", code=-9):
    return RankRecord("j", rank, f"h{rank}", 100, state, code)


def scene(*steps):
    """Wait for two `done` results while these steps happen."""

    async def play():
        job = Job(SPEC)
        waiting = asyncio.create_task(job.wait("done", 2, 60.0))
        for step in steps:
            await asyncio.sleep(0)
            await step(job)
        return await waiting

    return asyncio.run(asyncio.wait_for(play(), 10))


def says(rank, kind="done", **rest):
    return lambda job: job.add(Result("j", rank, {"kind": kind, "from": rank} | rest))


def test_results_come_in_rank_order():
    """Whoever reports first, results are in the order of ranks; a rank that then exits is none of their concern."""
    found = scene(says(1), lambda job: job.note_ranks([ended(1, "exited", 0)]), says(0))
    assert [result["from"] for result in found] == [0, 1]


def test_a_rank_that_dies_silently_is_named_at_once():
    """A rank whose process is gone before it reported is an error with its host and code, not a time-out."""
    with pytest.raises(UnhealthyError, match="rank 1: killed on h1 with code -9 before it said 'done'"):
        scene(says(0), lambda job: job.note_ranks([ended(1)]))


def test_a_reported_error_is_told_in_the_ranks_words():
    """What a rank says of its own failure comes before the fact that it is gone."""
    with pytest.raises(UnhealthyError, match="rank 0: no NIC"):
        scene(says(0, "error", error="no NIC"), lambda job: job.note_ranks([ended(0, "exited", 2)]))
