"""Reads a stream in order and without a gap, across lost connections and restarts of the server."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from c4bench.bus.connection import FAILURES, Bus, Stored
from c4bench.decoding import decoding, whole_number

_logger = logging.getLogger(__name__)

_BATCH = 256
# The server says so often (s) that there is nothing; a consumer is made again after so long without a word.
_HEARTBEAT_S, _LOST_AFTER_S = 0.5, 1.6
# The server forgets a consumer that nobody listens to for so long (s).
_INACTIVE_S = 10.0
_REMOVED = ("DEL", "PURGE")
# Of a message of the server itself: flow control, or a heartbeat. Any other one says that it has given the consumer up.
_CONTROL = "100"


class StreamReader:
    """Messages on `subject` from number `first` on, or from the server's time `since_s` on, whichever is later.

    `position` is the number of the newest message that was returned, `pending` how many the server says to hold behind
    it, and `caught_up` whether all have been returned that it held when reading began. nats-server 2.9 may say one
    too many where keys are overwritten meanwhile, and never 0; then the time of a message, or an idle server, tells.

    What the server says of itself comes on a subject that is the consumer's inbox. All else is a message of the stream,
    whatever headers its publisher gave it.
    """

    def __init__(self, bus: Bus, stream: str, subject: str, first: int = 1, since_s: float = 0.0) -> None:
        self._bus, self._stream, self._subject = bus, stream, subject
        self._since_s, self.position, self.pending, self.caught_up = since_s, first - 1, 0, False
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._arrived: deque[Msg] = deque()
        self._some = asyncio.Event()
        self._delivered, self._reconnects, self._word_s, self._begun_s = 0, 0, 0.0, 0.0
        self._given_up = ""

    async def read(self, within_s: float) -> list[Stored]:
        """The next messages; none if none have come `within_s`. Raises one of FAILURES; it may be called again."""
        lost = time.monotonic() - self._word_s > _LOST_AFTER_S
        if self._subscription is None or self._reconnects != self._bus.reconnects or lost:
            await self._begin()
        if not self._arrived:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), within_s)
        self._some.clear()
        found: list[Stored] = []
        while self._arrived and len(found) < _BATCH and self._subscription is not None:
            message = self._arrived.popleft()
            if message.subject == self._inbox:
                await self._obey(message)
            elif (stored := self._accept(message)) is not None:
                found.append(stored)
        if self._arrived:
            self._some.set()
        return found

    async def read_all(self) -> list[Stored]:
        """All messages that the stream has now. Raises one of FAILURES."""
        return [stored async for stored in self.each()]

    async def each(self) -> AsyncIterator[Stored]:
        """One after the other, all messages that the stream has now. Raises one of FAILURES."""
        await self._begin()
        while not self.caught_up:
            for stored in await self.read(_HEARTBEAT_S):
                yield stored
        await self.close()

    async def _begin(self) -> None:
        await self.close()
        inbox = self._bus.client.new_inbox()
        self._delivered, self._reconnects, self._word_s = 0, self._bus.reconnects, time.monotonic()
        start = {"deliver_policy": api.DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": self.position + 1}
        if self._since_s:
            at = datetime.fromtimestamp(self._since_s, UTC)
            start = {"deliver_policy": api.DeliverPolicy.BY_START_TIME, "opt_start_time": at}
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.NONE,
            deliver_subject=inbox,
            filter_subject=self._subject,
            flow_control=True,
            idle_heartbeat=_HEARTBEAT_S,
            inactive_threshold=_INACTIVE_S,
            **start,  # type: ignore[arg-type]
        )
        self._inbox = inbox

        async def receive(message: Msg) -> None:
            # A consumer that was given up may have messages under way.
            if self._inbox == inbox:
                self._word_s = time.monotonic()
                self._arrived.append(message)
                self._some.set()

        self._subscription = await self._bus.client.subscribe(inbox, cb=receive)
        try:
            info = await self._bus.js.add_consumer(self._stream, config)
        except FAILURES:
            await self.close()
            raise
        self._begun_s = info.created.timestamp()
        self.pending = (info.num_pending or 0) + (info.delivered.consumer_seq if info.delivered else 0)
        self.caught_up = not self.pending

    async def _obey(self, message: Msg) -> None:
        """Do what the server asks for. Where it has given this consumer up, the next call of `read` makes another."""
        headers = message.headers or {}
        status = headers.get("Status")
        if status == _CONTROL:
            await self._acknowledge(message.reply, headers)
        elif status:
            await self._begin_again(f"{status} {headers.get('Description', '')}".strip())

    async def _begin_again(self, why: str) -> None:
        if why != self._given_up:
            self._given_up = why
            _logger.warning("bus: reading %s of %s begins again: %s", self._subject, self._stream, why)
        await self.close()

    async def _acknowledge(self, reply: str, headers: dict[str, str]) -> None:
        """Answer the server's flow control: all before this has been read. A heartbeat wants no answer."""
        if asked := reply or headers.get("Nats-Consumer-Stalled"):
            await self._bus.client.publish(asked)
        elif whole_number(headers.get("Nats-Last-Consumer", str(self._delivered))) != self._delivered:
            await self.close()
        else:
            self.pending, self.caught_up = 0, True

    def _accept(self, message: Msg) -> Stored | None:
        """The message, unless it was returned before; what follows a gap is read again."""
        numbers = self._bus.incoming.used("delivery", message.subject, lambda: _numbers(message.reply))
        if numbers is None:
            return None
        sequence, delivered, at_s, pending = numbers
        if delivered != self._delivered + 1:
            self._word_s = 0.0
            self._arrived.clear()
            return None
        self._delivered, self.pending = delivered, pending
        self.caught_up = self.caught_up or not pending or at_s >= self._begun_s
        if sequence <= self.position:
            return None
        self.position, self._since_s = sequence, 0.0
        removed = (message.headers or {}).get("KV-Operation") in _REMOVED
        return Stored(sequence, at_s, message.subject, message.data, removed)

    async def close(self) -> None:
        """Stop reading."""
        subscription, self._subscription, self._inbox = self._subscription, None, ""
        self._arrived.clear()
        if subscription is not None:
            with suppress(*FAILURES):
                await subscription.unsubscribe()


def _numbers(reply: str) -> tuple[int, int, float, int]:
    """Number in the stream, number of the delivery, the server's time (s), and how many are pending.

    `$JS.ACK.STREAM.CONSUMER.DELIVERIES.STREAM_SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING` (NATS ADR 15); newer servers put
    a domain and an account before the stream. Raises DecodingError for anything else.
    """
    parts = reply.split(".")
    at = 5 if len(parts) == 9 else 7
    with decoding():
        sequence, delivered, at_ns, pending = (whole_number(part) for part in parts[at : at + 4])
    return sequence, delivered, at_ns / 1e9, pending
