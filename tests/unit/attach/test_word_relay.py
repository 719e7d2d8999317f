"""Which NIC goes on for which, by the inventory; what an agent keeps of words."""

import asyncio
import json
import socket

import pytest

from c4bench.attach.relay import WordRelay, twins
from c4bench.budget import ATTACHED
from c4bench.model.fabric import Nic
from c4bench.wire.messages import AttachedWord


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([], ""),
        ([1e10], ""),
        ([1e10, 1e10], "d0=d1,d1=d0"),
        ([1e10, 1e10, 1e10], "d0=d1,d1=d2,d2=d0"),
        ([1e10, 2e10, 1e10], "d0=d2,d2=d0"),
    ],
)
def test_the_next_nic_of_the_same_rate_goes_on(rates, said):
    """By index, and after the last the first; one alone of its rate has none."""
    nics = [Nic("h", index, f"d{index}", f"n{index}", f"10.{index}.0.1", rate) for index, rate in enumerate(rates)]
    assert twins(nics[::-1]) == said


NICS = [Nic("h", 0, "d0", "n0", "10.0.0.1", 1e10)]
PID, ANOTHER = 100, 200


class Process:
    """What a process says to its agent, line by line, and hears."""

    def __init__(self, relay, pid):
        self._relay, self._pid = relay, pid

    async def __aenter__(self):
        near, far = socket.socketpair()
        reader, self._served = await asyncio.open_unix_connection(sock=near)
        self.serving = asyncio.create_task(self._relay.serve(reader, self._served, self._pid))
        self.heard, self._writer = await asyncio.open_unix_connection(sock=far)
        assert "twins" in await self.hear()
        return self

    async def __aexit__(self, *raised):
        self._writer.close()
        await self.serving
        self._served.close()

    def say(self, **line):
        self._writer.write(json.dumps(line).encode() + b"\n")

    async def hear(self, within_s=5.0):
        """The next line; None where none comes."""
        try:
            async with asyncio.timeout(within_s):
                return json.loads(await self.heard.readline())
        except TimeoutError:
            return None


def to(qp, word="x"):
    """A word to this host's end `qp`."""
    return AttachedWord("10.1.0.1", 18, "10.0.0.1", qp, word)


def test_words_to_a_process_that_does_not_read_are_lost():
    """A stopped process costs its agent no more than some words, however many come."""

    async def kept():
        relay = WordRelay(NICS, None)
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=near)
        serving = asyncio.create_task(relay.serve(reader, writer, PID))
        far.sendall(json.dumps({"have": "10.0.0.1", "qp": 17}).encode() + b"\n")
        await asyncio.sleep(0.05)
        for _ in range(20_000):
            relay.deliver(to(17, "x" * 100))
        size = writer.transport.get_write_buffer_size()
        serving.cancel()
        far.close()
        return size

    assert 0 < asyncio.run(kept()) < 32 * ATTACHED.bytes


def test_an_end_that_is_refused_leaves_the_others():
    """The process learns which one it is; words to its other ends come on, and so do its own."""

    async def play():
        relay = WordRelay(NICS, None)
        async with Process(relay, PID) as process:
            process.say(have="10.0.0.1", qp=17)
            process.say(have="10.9.9.9", qp=18)
            refused = await process.hear()
            process.say(source="10.9.9.9", qp=18, destination="10.0.0.1", remote_qp=17, word="not mine")
            process.say(source="10.0.0.1", qp=17, destination="10.0.0.1", remote_qp=17, word="mine")
            return refused, await process.hear()

    refused, heard = asyncio.run(play())
    assert (refused["refused"], refused["qp"]) == ("10.9.9.9", 18)
    assert "no address of this host" in refused["error"]
    assert heard["word"] == "mine"


@pytest.mark.parametrize("owner", [PID, None])
def test_a_process_cannot_have_another_ones_queue_pair(owner):
    """By the kernel's word of who has it, whoever comes first; where the kernel says nothing the first has it."""

    async def play():
        relay = WordRelay(NICS, None, lambda device, qp: owner if (device, qp) == ("d0", 17) else None)
        async with Process(relay, PID) as process, Process(relay, ANOTHER) as another:
            first, second = (another, process) if owner else (process, another)
            first.say(have="10.0.0.1", qp=17)
            if owner:
                assert "another process" in (await another.hear())["error"]
            await asyncio.sleep(0.05)
            second.say(have="10.0.0.1", qp=17)
            if owner is None:
                assert "another process" in (await another.hear())["error"]
            await asyncio.sleep(0.05)
            relay.deliver(to(17))
            return (await process.hear())["word"], await another.hear(0.1)

    assert asyncio.run(play()) == ("x", None)


def test_an_agent_that_has_just_begun_does_not_say_that_an_end_is_absent():
    """Its process may be about to look for it; later the one that asks is told."""

    async def play():
        relay = WordRelay(NICS, None)
        async with Process(relay, PID) as process:
            process.say(have="10.0.0.1", qp=17)
            asks = {"source": "10.0.0.1", "qp": 17, "destination": "10.0.0.1", "remote_qp": 18, "word": "fence"}
            process.say(**asks)
            at_first = await process.hear(0.3)
            await asyncio.sleep(1.0)
            process.say(**asks)
            return at_first, (await process.hear())["word"]

    assert asyncio.run(play()) == (None, "absent")
