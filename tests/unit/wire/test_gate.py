"""Connections that have not authenticated are bounded, in all, by address and in time."""

import asyncio
import contextlib
import socket

import pytest

from c4bench.wire.gate import Gate, Limits


async def answered(reader, writer):
    """A server that waits for its peer to close."""
    await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def serving(limits):
    """A gate, and the address behind it."""
    gate = Gate("test", limits)
    (listening,) = gate.listen("127.0.0.1", 0)
    async with await asyncio.start_server(answered, sock=listening):
        yield gate, listening.getsockname()
        await asyncio.sleep(0.05)  # let the server notice that its peers have closed


async def closed(connection, within_s=2.0):
    """Whether the server has closed this connection, which is closed here too."""
    reader, writer = connection
    try:
        return await asyncio.wait_for(reader.read(), within_s) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()


async def knock(place, source="127.0.0.1"):
    """A connection from an address."""
    return await asyncio.open_connection(*place, local_addr=(source, 0))


def test_what_a_server_says_goes_out_at_once():
    """A short answer does not wait until the peer has acknowledged the one before (TCP_NODELAY)."""
    at_once = []

    async def noted(_reader, writer):
        at_once.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def scene():
        (listening,) = Gate("test", Limits()).listen("127.0.0.1", 0)
        async with await asyncio.start_server(noted, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(scene())
    assert at_once[0] != 0


def test_one_address_has_a_share_and_others_get_in():
    """Beyond its share an address is refused at once, and another address still gets a connection."""

    async def scene():
        async with serving(Limits(in_all=8, of_address=2, patience_s=60.0)) as (gate, place):
            mine = [await knock(place) for _ in range(4)]
            other = await knock(place, "127.0.0.2")
            counted = gate._count
            return [await closed(one, 0.2) for one in (*mine, other)], counted

    assert asyncio.run(scene()) == ([False, False, True, True, False], 3)


def test_what_has_waited_makes_room_for_another():
    """Where all places are taken, the oldest of whoever has most is closed for a newcomer, once it has had time."""

    async def scene():
        async with serving(Limits(in_all=3, of_address=3, patience_s=0.1)) as (_, place):
            crowd = [await knock(place) for _ in range(3)]
            await asyncio.sleep(0.2)
            guest = await knock(place, "127.0.0.2")
            return [await closed(one, 0.2) for one in (*crowd, guest)]

    assert asyncio.run(scene()) == [True, False, False, False]


def test_a_server_that_closes_late_has_no_more_connections():
    """However many are accepted before the event loop closes those that made room, there are as many as allowed."""

    async def scene():
        (listening,) = Gate("test", Limits(in_all=4, of_address=4, closing=3, patience_s=0.0)).listen("127.0.0.1", 0)
        with contextlib.ExitStack() as stack:
            stack.enter_context(listening)
            for _ in range(20):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            accepted = []
            for _ in range(20):
                with contextlib.suppress(ConnectionAbortedError):
                    accepted.append(stack.enter_context(listening.accept()[0]))
            first = len(accepted)
            for one in accepted[:3]:
                one.close()
            stack.enter_context(socket.create_connection(listening.getsockname()))
            stack.enter_context(listening.accept()[0])
            return first

    assert asyncio.run(scene()) == 4 + 3


def test_nobody_waits_longer_than_the_limit():
    """A connection that has not authenticated in time is closed; one that has stays, and takes no place."""

    async def scene():
        async with serving(Limits(in_all=8, of_address=8, within_s=0.3)) as (gate, place):
            late = await knock(place)
            known = await knock(place)
            await asyncio.sleep(0.05)
            gate.admit(known[1].get_extra_info("sockname"))
            assert gate._count == 1
            return await closed(late), await closed(known, 0.2), gate._count

    assert asyncio.run(scene()) == (True, False, 0)


def test_a_connection_that_ends_frees_its_place():
    """Peers that come and go leave nothing behind."""

    async def scene():
        async with serving(Limits(in_all=2, of_address=2, patience_s=60.0)) as (gate, place):
            for _ in range(5):
                _, writer = await asyncio.open_connection(*place)
                writer.close()
                await writer.wait_closed()
                await asyncio.sleep(0.05)
            return gate._count, gate._waiting

    assert asyncio.run(scene()) == (0, {})


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_name_with_two_families_is_heard_on_both():
    """All addresses of the name get the same port."""

    async def scene():
        sockets = Gate("test").listen("localhost", 0)
        try:
            return {one.getsockname()[1] for one in sockets}
        finally:
            for one in sockets:
                one.close()

    assert len(asyncio.run(scene())) == 1


def test_a_crowd_is_logged_once_a_minute(caplog):
    """However often one connection makes room for the next, and whoever else comes and goes, one line says so."""

    async def scene():
        async with contextlib.AsyncExitStack() as stack:
            _, place = await stack.enter_async_context(serving(Limits(of_address=2, patience_s=0.0)))
            for number in range(20):
                for source in ("127.0.0.1", *(["127.0.0.2"] if number % 5 == 0 else [])):
                    stack.callback((await knock(place, source))[1].close)
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert sum("have not authenticated" in line for line in caplog.messages) == 1
