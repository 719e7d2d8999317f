"""A port's completions and events as asynchronous iterators, for asyncio programs. Ranks use `waiting`."""

import asyncio
from collections.abc import AsyncIterator

from c4bench.verbs.transport import Completion, Port, PortEvent


async def completions(port: Port) -> AsyncIterator[Completion]:
    """The completions of `port` as they arrive, without blocking the event loop."""
    while True:
        # `completions` arms before it polls, so a later completion makes the descriptor readable.
        for completion in port.completions():
            yield completion
        await _readable(port.event_fds[0])


async def events(port: Port) -> AsyncIterator[PortEvent]:
    """The asynchronous events of `port` as they arrive, without blocking the event loop."""
    while True:
        await _readable(port.event_fds[1])
        for event in port.events():
            yield event


async def _readable(fd: int) -> None:
    # Watch only while waiting: a permanent reader would be called repeatedly until the data is read.
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    loop.add_reader(fd, woken.set)
    try:
        await woken.wait()
    finally:
        loop.remove_reader(fd)
