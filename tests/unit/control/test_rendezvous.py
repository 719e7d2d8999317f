"""All-gather by name among ranks that come in any order, or do not come."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.control.rendezvous import Board
from c4bench.errors import UnhealthyError
from c4bench.wire.messages import Exchange


def ask(board, key, rank, size, timeout_s=1.0):
    """One rank's request."""
    return board.exchange(Exchange("job", key, rank, size, str(rank).encode(), timeout_s))


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(6)))
def test_everybody_gets_everything_in_rank_order(order):
    """Whatever the order of arrival, every rank gets all payloads by rank, and a key can be used again."""

    async def scene():
        board = Board()
        for _ in range(2):
            answers = await asyncio.gather(*(ask(board, "k", rank, 6) for rank in order))
            assert all(answer == tuple(str(rank).encode() for rank in range(6)) for answer in answers)

    asyncio.run(scene())


def test_the_missing_are_named():
    """Ranks that wait in vain are told for whom."""

    async def scene():
        board = Board()
        return await asyncio.gather(*(ask(board, "k", rank, 4, 0.05) for rank in (0, 2)), return_exceptions=True)

    first, second = asyncio.run(scene())
    for error in (first, second):
        assert isinstance(error, UnhealthyError)
        assert "ranks [1, 3] did not come to 'k'" in str(error)


def test_a_forgotten_job_keeps_nobody_waiting():
    """When a job is stopped its pending exchanges end at once."""

    async def scene():
        board = Board()
        waiting = asyncio.create_task(ask(board, "k", 0, 2, 60.0))
        await asyncio.sleep(0)
        board.forget("job")
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scene())
