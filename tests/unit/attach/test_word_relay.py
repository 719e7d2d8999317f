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


def test_words_to_a_process_that_does_not_read_are_lost():
    """A stopped process costs its agent no more than some words, however many come."""

    async def kept():
        relay = WordRelay([Nic("h", 0, "d0", "n0", "10.0.0.1", 1e10)], None)
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=near)
        serving = asyncio.create_task(relay.serve(reader, writer))
        far.sendall(json.dumps({"have": "10.0.0.1", "qp": 17}).encode() + b"\n")
        await asyncio.sleep(0.05)
        for _ in range(20_000):
            relay.deliver(AttachedWord("10.1.0.1", 18, "10.0.0.1", 17, "x" * 100))
        size = writer.transport.get_write_buffer_size()
        serving.cancel()
        far.close()
        return size

    assert 0 < asyncio.run(kept()) < 32 * ATTACHED.bytes
