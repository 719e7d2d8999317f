"""What nats-server says to a reader, and what others publish."""

import asyncio
import ssl

import pytest
from nats.aio.msg import Msg

from c4bench.bus.connection import Bus, Stored
from c4bench.bus.lease import HeldLease, read_lease
from c4bench.bus.reader import StreamReader
from c4bench.bus.subjects import Subjects

INBOX = "_INBOX.detector.x"
ACK = "$JS.ACK.telemetry.c.1.{}.{}.1700000000000000000.0"


class Reader(StreamReader):
    """A reader whose consumer is there; `begun` counts how often it made another."""

    def __init__(self):
        bus = Bus("nats://127.0.0.1:1", ssl.create_default_context(), "detector", Subjects("c4"))
        super().__init__(bus, "telemetry", "c4.c4.job.j.>")
        self.begun = 0

    async def _begin(self):
        await self.close()
        self.begun += 1
        self._subscription, self._inbox, self._word_s, self._delivered = Unsubscribed(), INBOX, 1e12, 0

    def read_now(self, *messages):
        """What is read of messages that have arrived."""

        async def read():
            if self._subscription is None:
                await self._begin()
            self._arrived.extend(messages)
            return await self.read(0.01)

        return asyncio.run(read())


class Unsubscribed:
    async def unsubscribe(self):
        """Nothing."""


def message(number, headers=None, reply=ACK):
    """A message of the stream."""
    return Msg(None, "c4.c4.job.j.window.h0", reply.format(number, number), b"x", headers)


def control(status, **headers):
    """What the server says itself."""
    return Msg(None, INBOX, "", b"", {"Status": status, **headers})


@pytest.mark.parametrize("status", ["404", "408", "409", "503"])
def test_a_consumer_that_the_server_gives_up_is_made_again_and_that_is_said_once(status, caplog):
    """Whatever the server's reason, the reader goes on with another consumer where it was."""
    reader = Reader()
    for _ in range(3):
        assert reader.read_now(control(status, Description="Consumer Deleted")) == []
    assert [stored.sequence for stored in reader.read_now(message(1))] == [1]
    assert reader.begun == 4
    assert caplog.text.count(f"begins again: {status} Consumer Deleted") == 1


@pytest.mark.parametrize("status", ["100", "404", "408", "409", "503"])
def test_a_published_status_is_part_of_a_message(status):
    """A header that another has published makes a message none of the server's."""
    reader = Reader()
    assert [stored.sequence for stored in reader.read_now(message(1, {"Status": status}), message(2))] == [1, 2]
    assert reader.begun == 1


@pytest.mark.parametrize("reply", ["", "x", "$JS.ACK.a.b.c.d.e.f.g", "$JS.ACK.telemetry.c.1." + "9" * 5000])
def test_a_message_that_no_consumer_has_delivered_is_left_out(reply):
    """What says no number of its delivery is counted, and ends nothing."""
    reader = Reader()
    assert reader.read_now(message(1, reply=reply)) == []
    assert reader._bus.incoming.left_out == {"unreadable delivery": 1}


def test_a_lease_of_a_time_to_come_is_none(caplog):
    """A lease that was judged further than when it was written would keep its job unjudged; that is said once."""
    bus = Reader()._bus
    ahead = [Stored(1, 100.0, "key", b'{"holder": "d", "judged_s": %d}' % judged_s) for judged_s in (100, 1_000, 2_000)]
    assert [read_lease(bus, stored) for stored in ahead] == [HeldLease("d", judged_s=100.0), None, None]
    assert bus.incoming.left_out == {"unreadable lease": 2}
    assert len(caplog.records) == 1
