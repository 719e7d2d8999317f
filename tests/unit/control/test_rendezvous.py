"""All-gather by name among ranks that come in any order, do not come, or fail."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.control.rendezvous import RendezvousService
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import Failure
from c4bench.wire.messages import Exchange, Exchanged, Fail, InboxBatch, PollInbox, RelayMessage


def ask(board, key, rank, size, timeout_s=1.0):
    """One rank's request."""
    return board.exchange(Exchange("job", "comm", key, rank, size, str(rank).encode(), timeout_s))


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(6)))
def test_everybody_gets_everything_in_rank_order(order):
    """Whatever the order of arrival, every rank gets all payloads by rank, and a key can be used again."""

    async def scene():
        board = RendezvousService()
        for _ in range(2):
            answers = await asyncio.gather(*(ask(board, "k", rank, 6) for rank in order))
            assert {answer.payloads for answer in answers} == {tuple(str(rank).encode() for rank in range(6))}

    asyncio.run(scene())


def test_the_missing_are_named_to_all_at_once():
    """When the first rank's patience ends, everybody who waits is told for whom, the patient ones too."""

    async def scene():
        board = RendezvousService()
        return await asyncio.gather(ask(board, "k", 0, 4, 0.05), ask(board, "k", 2, 4, 60.0))

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == [Exchanged(missing=(1, 3))] * 2


def test_a_failure_reaches_who_waits_who_watches_and_who_comes_late():
    """The first failure of a communicator ends exchanges pending and to come, and answers every watcher."""

    async def scene():
        board = RendezvousService()
        waiting = asyncio.create_task(ask(board, "k", 0, 3, 60.0))
        watching = asyncio.create_task(board.watch("job", "comm"))
        elsewhere = asyncio.create_task(board.watch("job", "other"))
        await asyncio.sleep(0)
        board.fail(Fail("job", "comm", Failure(1, "first")))
        board.fail(Fail("job", "comm", Failure(2, "second")))
        told = [await waiting, await ask(board, "late", 0, 3, 60.0), Exchanged(failure=await watching)]
        told.append(Exchanged(failure=await board.watch("job", "comm")))
        assert not elsewhere.done()
        elsewhere.cancel()
        return told

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == [Exchanged(failure=Failure(1, "first"))] * 4


def test_a_watcher_that_goes_away_leaves_the_others():
    """Cancelling one rank's watch does not end another's."""

    async def scene():
        board = RendezvousService()
        leaving, staying = (asyncio.create_task(board.watch("job", "comm")) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        board.fail(Fail("job", "comm", Failure(0, "x")))
        return await staying

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == Failure(0, "x")


def test_a_forgotten_job_keeps_nobody_waiting():
    """When a job is stopped its pending exchanges end at once, with that reason."""

    async def scene():
        board = RendezvousService()
        waiting = asyncio.create_task(ask(board, "k", 0, 2, 60.0))
        await asyncio.sleep(0)
        board.forget("job")
        await waiting

    with pytest.raises(UnhealthyError, match="job job has ended"):
        asyncio.run(asyncio.wait_for(scene(), 10))


def word(sender, to, body):
    """What one rank says to another."""
    return RelayMessage("job", "comm", sender, to, body)


def news(board, rank, after=0):
    """What a rank asks."""
    return board.news(PollInbox("job", "comm", rank, after))


def test_words_reach_those_they_are_meant_for():
    """A rank gets what was said to it or to all others, in order, whether it asked before or after, and only once."""

    async def scene():
        board = RendezvousService()
        early = asyncio.create_task(news(board, 1))
        await asyncio.sleep(0)
        board.word(word(1, -1, b"own"))
        board.word(word(0, 2, b"another's"))
        board.word(word(0, 1, b"mine"))
        board.word(word(2, -1, b"everybody's"))
        assert await early == InboxBatch((b"mine", b"everybody's"), 4)
        assert await news(board, 0) == InboxBatch((b"own", b"everybody's"), 4)
        later = asyncio.create_task(news(board, 1, after=4))
        await asyncio.sleep(0)
        assert not later.done()
        board.word(word(0, 1, b"more"))
        assert await later == InboxBatch((b"more",), 5)

    asyncio.run(scene())


def test_the_end_of_a_job_ends_the_waiting_for_news():
    """Who waits for word when a job ends is told so."""

    async def scene():
        board = RendezvousService()
        waiting = asyncio.create_task(news(board, 0))
        await asyncio.sleep(0)
        board.forget("job")
        with pytest.raises(UnhealthyError, match="job job has ended"):
            await waiting

    asyncio.run(scene())
