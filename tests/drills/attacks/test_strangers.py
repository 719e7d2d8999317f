"""Strangers who connect and do not authenticate: agents and viewers still get in, and descriptors are bounded."""

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest
from hostile_agent import make_scene
from page_scene import PageScene
from websockets.exceptions import WebSocketException

from c4bench.wire.messages import Empty, Hello

CONNECTIONS = 700
# Strangers get 256, those of one address 32, and those that are being closed 32; 16 are for the agent and the log.
BESIDE = 32 + 16
MORE_AT_MOST, MORE_OF_ONE_AT_MOST = 256 + BESIDE, 32 + BESIDE


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A master with a page, on this machine."""
    made = make_scene(tmp_path_factory.mktemp("strangers"))
    yield made
    log = made.kill()
    assert not [line for line in log if line["level"] == "ERROR" or "exception" in line]
    assert len([line for line in log if "have not authenticated" in line["message"]]) <= 8


def descriptors(scene):
    """How many the master has."""
    return len(list(Path(f"/proc/{scene.master.pid}/fd").iterdir()))


async def say_nothing(_writer):
    """A connection on which nothing comes."""


async def begin_to_shake_hands(writer):
    """A TLS record that says it is longer than what comes."""
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    with contextlib.suppress(OSError):
        await writer.drain()


async def crowd(scene, sources, begin, stack):
    """Half-open connections from these addresses, in turn; how many descriptors the master had at the most."""
    most = 0
    for number in range(CONNECTIONS):
        with contextlib.suppress(OSError):
            source = sources[number % len(sources)]
            _, writer = await asyncio.open_connection("127.0.0.1", scene.port, local_addr=(source, 0))
            stack.callback(writer.close)
            await begin(writer)
        if number % 50 == 0:
            most = max(most, descriptors(scene))
    return max(most, descriptors(scene))


@pytest.mark.parametrize(
    ("sources", "begin", "more"),
    [
        pytest.param(
            ["127.0.0.1"],
            say_nothing,
            MORE_OF_ONE_AT_MOST,
            marks=pytest.mark.attack("half-open connections"),
        ),
        pytest.param(
            ["127.0.0.1"],
            begin_to_shake_hands,
            MORE_OF_ONE_AT_MOST,
            marks=pytest.mark.attack("variant: half a TLS record"),
        ),
        pytest.param(
            [f"127.0.1.{number}" for number in range(1, 101)],
            say_nothing,
            MORE_AT_MOST,
            marks=pytest.mark.attack("variant: strangers from many addresses"),
        ),
    ],
)
def test_an_agent_connects_beside_strangers(scene, sources, begin, more):
    """However many connections are half open, the master's descriptors are bounded and an agent gets in."""

    async def play():
        before = descriptors(scene)
        async with contextlib.AsyncExitStack() as stack:
            most = await crowd(scene, sources, begin, stack)
            for _ in range(20):
                with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                    peer = await stack.enter_async_context(scene.agent("h0"))
                    break
                await asyncio.sleep(0.2)
            await peer.call("hello", Hello("h0", "1", "", "no RDMA device"), Empty)
            return most - before

    assert asyncio.run(asyncio.wait_for(play(), 30)) <= more
    assert scene.health()["agents"]["h0"]


@pytest.mark.attack("variant: many connections of one agent")
def test_one_agent_has_few_connections(scene):
    """An agent that connects again and again has its older connections closed; its newest one is served."""

    async def play():
        before = descriptors(scene)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(40):
                peer = await stack.enter_async_context(scene.agent("h1"))
            await peer.call("hello", Hello("h1", "1", "", "no RDMA device"), Empty)
            return descriptors(scene) - before

    assert asyncio.run(asyncio.wait_for(play(), 30)) <= 8


@pytest.mark.attack("the page: half-open connections")
def test_a_viewer_gets_the_page_beside_strangers(tmp_path):
    """The page's strangers are bounded as well, and an operator's certificate still opens it."""
    scene, strangers = PageScene(tmp_path, hosts=2, per_leaf=1, spines=1), []
    place = "127.0.0.1", int(scene.address.rpartition(":")[2])
    own = Path("/proc/self/fd")
    try:
        before = len(list(own.iterdir()))
        for number in range(300):
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection(place, source_address=(f"127.0.1.{number % 50 + 1}", 0)))
        most = len(list(own.iterdir())) - before - len(strangers)
        time.sleep(1.1)
        status = scene.request("/", who="operator")[0]
    finally:
        for stranger in strangers:
            stranger.close()
        scene.stop()
    assert status == 200
    assert most <= 64 + BESIDE
