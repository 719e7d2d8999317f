"""All-gather by name among ranks that join in any order, are missing, or fail."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4bench.control.jobs import rendezvous
from c4bench.control.jobs.rendezvous import RendezvousService
from c4bench.control.state.store import RelayedMessage
from c4bench.errors import UnhealthyError
from c4bench.model.telemetry import Failure
from c4bench.wire.messages import Exchange, Exchanged, Fail, InboxBatch, PollInbox, RelayMessage


def ask(rendezvous, key, rank, size, timeout_s=1.0):
    """One rank's exchange."""
    return rendezvous.exchange(Exchange("job", "comm", key, rank, size, str(rank).encode(), timeout_s))


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(6)))
def test_everybody_gets_everything_in_rank_order(order):
    """In any order of arrival, every rank gets all payloads in rank order, and a key can be used again."""

    async def scene():
        rendezvous = RendezvousService()
        for _ in range(2):
            answers = await asyncio.gather(*(ask(rendezvous, "k", rank, 6) for rank in order))
            assert {answer.payloads for answer in answers} == {tuple(str(rank).encode() for rank in range(6))}

    asyncio.run(scene())


def test_missing_ranks_are_named_to_all_that_wait():
    """At the first rank's timeout, every waiting rank gets the missing ranks, even with a longer timeout."""

    async def scene():
        rendezvous = RendezvousService()
        return await asyncio.gather(ask(rendezvous, "k", 0, 4, 0.05), ask(rendezvous, "k", 2, 4, 60.0))

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == [Exchanged(missing=(1, 3))] * 2


def test_a_failure_reaches_all_that_wait_watch_or_join_later():
    """The first failure of a communicator ends its pending and later exchanges, and answers every watcher."""

    async def scene():
        rendezvous = RendezvousService()
        waiting = asyncio.create_task(ask(rendezvous, "k", 0, 3, 60.0))
        watching = asyncio.create_task(rendezvous.watch("job", "comm"))
        elsewhere = asyncio.create_task(rendezvous.watch("job", "other"))
        await asyncio.sleep(0)
        rendezvous.fail(Fail("job", "comm", Failure(1, "first")))
        rendezvous.fail(Fail("job", "comm", Failure(2, "second")))
        failures = [await waiting, await ask(rendezvous, "late", 0, 3, 60.0), Exchanged(failure=await watching)]
        failures.append(Exchanged(failure=await rendezvous.watch("job", "comm")))
        assert not elsewhere.done()
        elsewhere.cancel()
        return failures

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == [Exchanged(failure=Failure(1, "first"))] * 4


def test_cancelling_a_watch_leaves_the_others():
    """Cancelling one rank's watch does not end another's."""

    async def scene():
        rendezvous = RendezvousService()
        leaving, staying = (asyncio.create_task(rendezvous.watch("job", "comm")) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        rendezvous.fail(Fail("job", "comm", Failure(0, "x")))
        return await staying

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == Failure(0, "x")


def test_the_end_of_a_job_ends_its_exchanges():
    """When a job is stopped its pending exchanges end at once, with that reason."""

    async def scene():
        rendezvous = RendezvousService()
        waiting = asyncio.create_task(ask(rendezvous, "k", 0, 2, 60.0))
        await asyncio.sleep(0)
        rendezvous.forget("job")
        await waiting

    with pytest.raises(UnhealthyError, match="job job has ended"):
        asyncio.run(asyncio.wait_for(scene(), 10))


def message(sender, to, body):
    """A message from one rank to another."""
    return RelayMessage("job", "comm", sender, to, body)


def poll(rendezvous, rank, after=0):
    """One rank's poll."""
    return rendezvous.poll(PollInbox("job", "comm", rank, after))


def test_messages_reach_their_receivers():
    """A rank gets messages to it or to all others, in order and once, whether it polls before or after."""

    async def scene():
        rendezvous = RendezvousService()
        early = asyncio.create_task(poll(rendezvous, 1))
        await asyncio.sleep(0)
        rendezvous.relay(message(1, -1, b"own"))
        rendezvous.relay(message(0, 2, b"another's"))
        rendezvous.relay(message(0, 1, b"mine"))
        rendezvous.relay(message(2, -1, b"everybody's"))
        assert await early == InboxBatch((b"mine", b"everybody's"), 4)
        assert await poll(rendezvous, 0) == InboxBatch((b"own", b"everybody's"), 4)
        later = asyncio.create_task(poll(rendezvous, 1, after=4))
        await asyncio.sleep(0)
        assert not later.done()
        rendezvous.relay(message(0, 1, b"more"))
        assert await later == InboxBatch((b"more",), 5)

    asyncio.run(scene())


def test_the_end_of_a_job_ends_polls():
    """A poll that waits for messages when the job ends gets an error."""

    async def scene():
        rendezvous = RendezvousService()
        waiting = asyncio.create_task(poll(rendezvous, 0))
        await asyncio.sleep(0)
        rendezvous.forget("job")
        with pytest.raises(UnhealthyError, match="job job has ended"):
            await waiting

    asyncio.run(scene())


def test_a_job_cannot_fill_the_master(monkeypatch):
    """Communicators, exchanges and bytes of messages are limited, and what a job has used is free once it ends."""
    for name in ("_COMMS_AT_MOST", "_GATHERINGS_AT_MOST"):
        monkeypatch.setattr(rendezvous, name, 3)
    monkeypatch.setattr(rendezvous, "_RELAYED_AT_MOST_BYTES", 1000)

    async def fill():
        service = RendezvousService()
        waiting = [
            asyncio.create_task(service.exchange(Exchange("j", f"c{number}", "k", 0, 2, b"", 60.0)))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        with pytest.raises(UnhealthyError, match="has 3 communicators already"):
            await service.exchange(Exchange("j", "c3", "k", 0, 2, b"", 60.0))
        with pytest.raises(UnhealthyError, match="has 3 exchanges already"):
            await service.exchange(Exchange("j", "c0", "k2", 0, 2, b"", 60.0))
        service.relay(RelayMessage("j", "c0", 0, 1, b"x" * 900))
        with pytest.raises(UnhealthyError, match="has 1000 bytes of messages already"):
            service.relay(RelayMessage("j", "c0", 0, 1, b"x" * 900))
        service.forget("j")
        await asyncio.gather(*waiting, return_exceptions=True)
        service.relay(RelayMessage("j", "c0", 0, 1, b"x" * 900))

    asyncio.run(fill())


def test_a_rank_whose_connection_closes_leaves_nothing():
    """What a cancelled call has brought is forgotten, but not what the same rank has brought again meanwhile."""

    async def leave():
        service = RendezvousService()
        service.admit("job")
        first, again = (asyncio.create_task(ask(service, "k", 0, 2, 60.0)) for _ in range(2))
        alone = asyncio.create_task(ask(service, "alone", 0, 2, 60.0))
        await asyncio.sleep(0)
        for cancelled in (first, alone):
            cancelled.cancel()
        await asyncio.gather(first, alone, return_exceptions=True)
        pending = dict(service._pending_bytes), list(service._gatherings)
        await ask(service, "k", 1, 2)
        return pending, (await again).payloads, dict(service._pending_bytes), list(service._gatherings)

    (pending, names), payloads, after, left = asyncio.run(leave())
    assert (pending, names) == ({"job": 1}, [(("job", "comm", ()), "k", 2)])
    assert payloads == (b"0", b"1")
    assert (after, left) == ({"job": 0}, [])


def test_restored_messages_and_pending_payloads_count(monkeypatch):
    """Messages that an earlier master has saved count against the limit, and so do the payloads of those that wait."""
    monkeypatch.setattr(rendezvous, "_RELAYED_AT_MOST_BYTES", 1000)
    monkeypatch.setattr(rendezvous, "_PENDING_AT_MOST_BYTES", 1000)

    async def fill():
        service = RendezvousService()
        service.admit("j", [RelayedMessage(RelayMessage("j", "c", 0, 1, b"x" * 900))])
        with pytest.raises(UnhealthyError, match="has 1000 bytes of messages already"):
            service.relay(RelayMessage("j", "c", 0, 1, b"x" * 900))
        waiting = asyncio.create_task(service.exchange(Exchange("j", "c", "k", 0, 2, b"x" * 900, 60.0)))
        await asyncio.sleep(0)
        with pytest.raises(UnhealthyError, match="has 1000 bytes in exchanges already"):
            await service.exchange(Exchange("j", "c", "other", 0, 2, b"x" * 900, 60.0))
        service.forget("j")
        await asyncio.gather(waiting, return_exceptions=True)
        service.admit("j")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(service.exchange(Exchange("j", "c", "k", 0, 2, b"x" * 900, 60.0)), 0.05)

    asyncio.run(fill())
