"""Agents that replay windows to a master over TLS: `python -m tools.bench.intake_agents FOLDER PORT HOSTS HOST...`.

Prints a line once all are connected, then reads the time at which the windows begin (s since the epoch).
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import c4bench
from c4bench.model.agent import WINDOWS_WITHIN
from c4bench.wire.channel import Channel, ChannelClosed, master_channel
from c4bench.wire.messages import Empty, Hello, JobSpec, Route, StartRanks
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import client_context
from tools.bench.intake_load import RANKS_PER_HOST, WINDOW_S, Replay, job_spec, read_replay


async def replay(folder: Path, port: int, hosts: int, names: Iterable[str]) -> None:
    """Connect the agents of these hosts, of `hosts` in all, and send their windows at their times."""
    spec = job_spec(hosts)
    async with AsyncExitStack() as stack:
        agents = [(await _connect(stack, folder, port, spec, name), read_replay(folder, name)) for name in names]
        sys.stdout.write("connected\n")
        sys.stdout.flush()
        begin_s = float(await asyncio.to_thread(sys.stdin.readline))
        phases_s = (WINDOW_S * WINDOWS_WITHIN * int(known.host[1:]) / hosts for _, known in agents)
        async with asyncio.TaskGroup() as tasks:
            for (channel, known), phase_s in zip(agents, phases_s, strict=True):
                tasks.create_task(_send(channel, known, begin_s + phase_s))


async def _connect(stack: AsyncExitStack, folder: Path, port: int, spec: JobSpec, host: str) -> Channel:
    """Introduce an agent whose ranks run already, and ask for the paths of their flows."""
    tls = client_context(folder / "ca.pem", folder / f"{host}.pem", folder / f"{host}.key")
    channel = await stack.enter_async_context(master_channel(f"127.0.0.1:{port}", tls))
    peer = Peer(channel, {"stop": Handler(object, _ignore)})
    serving = asyncio.create_task(peer.serve())
    stack.callback(serving.cancel)
    ranks = tuple(range(int(host[1:]) * RANKS_PER_HOST, (int(host[1:]) + 1) * RANKS_PER_HOST))
    await peer.call("hello", Hello(host, c4bench.__version__, "", "", (StartRanks(spec, ranks),)), Empty)
    await peer.call("route", Route(spec.id, read_replay(folder, host).flows), tuple[int, ...])
    return channel


async def _ignore(_: object) -> Empty:
    return Empty()


async def _send(channel: Channel, known: Replay, begin_s: float) -> None:
    """Send each window when it ends, until the master goes. Late ones are left out: an agent combines them."""
    with suppress(ChannelClosed):
        for message, end_s in _due(known, begin_s):
            await asyncio.sleep(max(0.0, begin_s + end_s - time.time()))
            await channel.send(message)


def _due(known: Replay, begin_s: float) -> Iterator[tuple[bytes, float]]:
    for number, (message, end_s) in enumerate(zip(known.messages, known.ends_s, strict=True)):
        # The first one has the names that the others need.
        if not number or time.time() - begin_s - end_s < WINDOW_S:
            yield message, end_s


if __name__ == "__main__":
    directory, at_port, in_all, *mine = sys.argv[1:]
    asyncio.run(replay(Path(directory), int(at_port), int(in_all), mine))
