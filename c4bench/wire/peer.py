"""Calls and notes in both directions over one channel."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from c4bench.budget import AGENT, Account, OverBudgetError
from c4bench.decoding import DecodingError, decoding, from_msgpack
from c4bench.errors import C4Error, UnhealthyError, report_bug
from c4bench.foreign_text import one_line
from c4bench.wire.channel import Channel, ChannelClosed
from c4bench.wire.framing import CALL_BYTES_MAX
from c4bench.wire.messages import Answer, Call, Empty, Message, Note

Body = TypeVar("Body")
# Handled at the same time for one connection. A host of 16 ranks with 100 communicators each waits in as many calls.
CALLS_AT_MOST = AGENT.records
# The note that nobody waits for the answer of a call any more; its body is the call's id.
_ABANDON = "abandon"
# With this message the task is cancelled that answers such a call.
ABANDONED = "abandoned"
_LONGEST_NAME = 80  # characters of what a peer calls a method, in an answer
_decoder = msgspec.msgpack.Decoder(Message)
encode = msgspec.msgpack.encode


class LostError(UnhealthyError):
    """The connection closed before the answer; whether the peer acted is unknown."""


class Handler(msgspec.Struct, frozen=True):
    """What answers a method: the type its body must have, the coroutine function, and the longest body."""

    body: Any
    function: Callable[[Any], Awaitable[Any]]
    most_bytes: int = CALL_BYTES_MAX


class Receiver(msgspec.Struct, frozen=True):
    """What takes the notes of a method, each with its body as it came, at once and in order: it cannot wait."""

    function: Callable[[msgspec.Raw], None]


class Peer:
    """The other end of a channel. `serve` must be running for anything to arrive.

    What it may have under way at once is bounded by `budget.AGENT`, in calls and in bytes; the rest is refused.
    """

    def __init__(self, channel: Channel, handlers: Mapping[str, Handler | Receiver]) -> None:
        self._channel = channel
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._under_way = Account("this connection has calls under way", AGENT)
        # One answer at a time is encoded, so that a peer that does not read costs no more than one.
        self._sending = asyncio.Lock()
        self.refused = 0  # messages that were not ours, or not as agreed

    async def serve(self) -> None:
        """Handle what arrives until the channel closes; every call still waiting then fails."""
        try:
            while True:
                await self._accept(await self._channel.receive())
        except ChannelClosed:
            pass
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(LostError("the connection closed before the answer"))
            for task in self._tasks:
                task.cancel()

    async def _accept(self, data: bytes) -> None:
        """Take a message in. Nothing else is received before a call that is refused has been answered."""
        try:
            with decoding():
                message = _decoder.decode(data)
        except DecodingError:
            self.refused += 1
            return
        if isinstance(message, Answer):
            future = self._waiting.pop(message.id, None)
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, Note) and message.method == _ABANDON:
            self._abandon(message)
        elif isinstance(message, Note) and isinstance(receiver := self._handlers.get(message.method), Receiver):
            self._receive(receiver, message)
        else:
            await self._begin_handling(message, len(data))

    async def _begin_handling(self, message: Call | Note, size_bytes: int) -> None:
        """Begin to handle a call or a note, if the peer may have one more under way."""
        try:
            self._check(message)
            self._under_way.spend(bytes=size_bytes)
        except C4Error as error:
            await self._refuse(message, str(error))
            return
        task = self._begin(self._handle(message))
        task.add_done_callback(lambda _: self._under_way.give_back(bytes=size_bytes))
        if isinstance(message, Call):
            number = message.id  # not the message: it is kept no longer than its bytes are needed
            self._answering[number] = task
            task.add_done_callback(lambda _: self._answering.pop(number, None))

    def _check(self, message: Call | Note) -> None:
        """Raises C4Error for a message that is not handled now, or never."""
        handler, name = self._handlers.get(message.method), one_line(message.method, _LONGEST_NAME)
        if not isinstance(handler, Handler):
            raise UnhealthyError(f"no method {name!r} here")
        if len(self._tasks) >= CALLS_AT_MOST:
            raise OverBudgetError(f"{CALLS_AT_MOST} calls of this connection are under way; wait for their answers")
        if len(bytes(message.body)) > handler.most_bytes:
            raise OverBudgetError(f"{name}: a request has up to {handler.most_bytes:,} bytes")

    def _receive(self, receiver: Receiver, note: Note) -> None:
        try:
            receiver.function(note.body)
        except Exception as failure:
            _report(note.method, failure)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _abandon(self, message: Note) -> None:
        """Stop answering a call; it may have been answered meanwhile."""
        try:
            task = self._answering.get(from_msgpack(message.body, int))
        except DecodingError:
            self.refused += 1
            return
        if task is not None:
            task.cancel(ABANDONED)

    async def _handle(self, message: Call | Note) -> None:
        method, number = message.method, message.id if isinstance(message, Call) else None
        answer, error = Empty(), ""
        try:
            work = self._work(message)
            del message  # so that what waits keeps the decoded request, and not its bytes too
            answer = await work
        except C4Error as failure:
            self.refused += isinstance(failure, DecodingError)
            error = str(failure) or type(failure).__name__
        except Exception as failure:
            error = _report(method, failure)
        if number is not None:
            await self._answer(number, answer, error)

    def _work(self, message: Call | Note) -> Awaitable[Any]:
        """What will answer a message. Raises DecodingError for a body that is not as agreed."""
        handler = self._handlers[message.method]
        assert isinstance(handler, Handler)
        body = message.body if handler.body is msgspec.Raw else from_msgpack(message.body, handler.body)
        return handler.function(body)

    async def _answer(self, number: int, answer: object, error: str) -> None:
        with contextlib.suppress(ChannelClosed):
            async with self._sending:
                body = answer if isinstance(answer, msgspec.Raw) else msgspec.Raw(encode(answer))
                await self._channel.send(encode(Answer(number, body, error)))

    async def _refuse(self, message: Call | Note, error: str) -> None:
        self.refused += 1
        if isinstance(message, Call):
            await self._answer(message.id, Empty(), error)

    async def call(self, method: str, body: object, answer: type[Body], *, abandons: bool = False) -> Body:
        """Call and wait for the answer; `abandons` as for `call_raw`.

        Raises UnhealthyError with the peer's error, or for an answer that cannot be read, LostError when it closes.
        """
        answered = await self.call_raw(method, encode(body), abandons=abandons)
        try:
            return from_msgpack(answered, answer)
        except DecodingError as error:
            raise UnhealthyError(f"{method}: the answer cannot be read: {error}") from None

    async def call_raw(self, method: str, body: bytes, *, abandons: bool = False) -> bytes:
        """As `call`, with bodies already encoded: what an agent relays for its ranks.

        With `abandons` the peer is told when this is cancelled, and stops answering: for calls that wait for long.
        """
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._channel.send(encode(Call(number, method, msgspec.Raw(body))))
            answered = await future
        except asyncio.CancelledError:
            if abandons:
                self._begin(self._note_abandoned(number))
            raise
        except ChannelClosed as error:
            raise LostError(f"{method}: the connection is closed ({error})") from None
        finally:
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # the channel may have closed before anybody waited
        if answered.error:
            raise UnhealthyError(one_line(answered.error))
        return bytes(answered.body)

    async def _note_abandoned(self, number: int) -> None:
        with contextlib.suppress(ChannelClosed):
            await self.note(_ABANDON, number)

    async def note(self, method: str, body: object) -> None:
        """Send a note. Raises ChannelClosed."""
        await self._channel.send(encode(Note(method, msgspec.Raw(encode(body)))))

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()


def _report(method: str, failure: Exception) -> str:
    """Report an error in what handles a method; return what it says."""
    error = f"{method} failed with {type(failure).__name__}: {failure}"
    report_bug(error, failure)
    return error
