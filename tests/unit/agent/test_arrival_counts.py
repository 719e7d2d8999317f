"""The agent's counters of numbered packets: they end when the master asks, or when it never does."""

import asyncio
import os

import pytest

from c4bench.agent.agent import ArrivalCounts
from c4bench.errors import UnhealthyError
from c4bench.model.fabric import Arrived, Nic, NumberedFlow
from c4bench.verbs.numbered_packets import send_numbered
from c4bench.wire.probes import HeardRequest, ListenRequest

LOOPBACK = Nic("h0", 0, "", "lo", "127.0.0.1", 1e10)


@pytest.fixture(autouse=True)
def _may_capture():
    if os.geteuid() != 0:
        pytest.skip("needs CAP_NET_RAW")


def test_what_arrives_is_returned_once():
    """A count ends with its answer; asking again is an error that says why."""

    async def scene():
        counts = ArrivalCounts(lambda _: LOOPBACK)
        await counts.listen(ListenRequest(0, 9, 5.0))
        await asyncio.to_thread(send_numbered, LOOPBACK, [NumberedFlow("127.0.0.1", 50124)], 3, 9, 1e4)
        heard = await counts.heard(HeardRequest(0, 9))
        with pytest.raises(UnhealthyError, match="ask sooner"):
            await counts.heard(HeardRequest(0, 9))
        return heard.arrived

    assert asyncio.run(scene()) == (Arrived("127.0.0.1", 50124, 3, 3, 0),)


def test_a_count_that_nobody_asks_for_ends():
    """If the master has gone away, the counter is closed after the time it was opened for."""

    async def scene():
        counts = ArrivalCounts(lambda _: LOOPBACK)
        await counts.listen(ListenRequest(0, 9, 0.01))
        await asyncio.sleep(0.1)
        with pytest.raises(UnhealthyError):
            await counts.heard(HeardRequest(0, 9))

    asyncio.run(scene())
