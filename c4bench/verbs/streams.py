"""What a port has to say as asynchronous iterators, for programs with an event loop. Ranks have none: see `waiting`."""

import asyncio
from collections.abc import AsyncIterator

from c4bench.verbs.transport import Completion, Port, PortEvent


async def completions(port: Port) -> AsyncIterator[Completion]:
    """Every completion of `port`, as they come, without blocking the running event loop."""
    while True:
        # This arms before it looks, so whatever comes after the look makes the descriptor readable.
        for completion in port.completions():
            yield completion
        await _readable(port.event_fds[0])


async def events(port: Port) -> AsyncIterator[PortEvent]:
    """Every asynchronous event of `port`, as they come, without blocking the running event loop."""
    while True:
        await _readable(port.event_fds[1])
        for event in port.events():
            yield event


async def _readable(fd: int) -> None:
    # Watched only while somebody waits: a reader that stays would be called again and again until the data is taken.
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    loop.add_reader(fd, woken.set)
    try:
        await woken.wait()
    finally:
        loop.remove_reader(fd)
