"""Calls and notes in both directions over one channel."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from c4bench.errors import C4Error, UnhealthyError, report_bug
from c4bench.wire.channel import Channel, ChannelClosed
from c4bench.wire.messages import Answer, Call, Empty, Message, Note

Body = TypeVar("Body")
# Handled at the same time for one connection. A host of 16 ranks with 100 communicators each waits in as many calls.
CALLS_AT_MOST = 4096
# The note that nobody waits for the answer of a call any more; its body is the call's id.
_ABANDON = "abandon"
# With this message the task is cancelled that answers such a call.
ABANDONED = "abandoned"
_decoder = msgspec.msgpack.Decoder(Message)
encode = msgspec.msgpack.encode


class LostError(UnhealthyError):
    """The connection closed before the answer; whether the peer acted is unknown."""


class Handler(msgspec.Struct, frozen=True):
    """What answers a method: the type its body must have, and the coroutine function."""

    body: Any
    function: Callable[[Any], Awaitable[Any]]


class Receiver(msgspec.Struct, frozen=True):
    """What takes the notes of a method, each with its body as it came, at once and in order: it cannot wait."""

    function: Callable[[msgspec.Raw], None]


class Peer:
    """The other end of a channel. `serve` must be running for anything to arrive."""

    def __init__(self, channel: Channel, handlers: Mapping[str, Handler | Receiver]) -> None:
        self._channel = channel
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: dict[int, asyncio.Task[None]] = {}
        self.refused = 0  # messages that were not ours, or not as agreed

    async def serve(self) -> None:
        """Handle what arrives until the channel closes; every call still waiting then fails."""
        try:
            while True:
                self._accept(await self._channel.receive())
        except ChannelClosed:
            pass
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(LostError("the connection closed before the answer"))
            for task in self._tasks:
                task.cancel()

    def _accept(self, data: bytes) -> None:
        try:
            message = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self.refused += 1
            return
        if isinstance(message, Answer):
            future = self._waiting.pop(message.id, None)
            if future is not None and not future.done():
                future.set_result(message)
            return
        if isinstance(message, Note) and message.method == _ABANDON:
            self._abandon(message)
            return
        receiver = self._handlers.get(message.method)
        if isinstance(message, Note) and isinstance(receiver, Receiver):
            self._receive(receiver, message)
            return
        task = self._begin(self._handle(message) if len(self._tasks) < CALLS_AT_MOST else self._refuse(message))
        if isinstance(message, Call):
            self._answering[message.id] = task
            task.add_done_callback(lambda _: self._answering.pop(message.id, None))

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
            task = self._answering.get(msgspec.msgpack.decode(message.body, type=int))
        except msgspec.DecodeError:
            self.refused += 1
            return
        if task is not None:
            task.cancel(ABANDONED)

    async def _handle(self, message: Call | Note) -> None:
        answer, error = Empty(), ""
        try:
            answer = await self._dispatch(message)
        except (C4Error, msgspec.DecodeError, UnicodeError, RecursionError) as failure:
            self.refused += not isinstance(failure, C4Error)
            error = str(failure) or type(failure).__name__
        except Exception as failure:
            error = _report(message.method, failure)
        if isinstance(message, Call):
            body = answer if isinstance(answer, msgspec.Raw) else msgspec.Raw(encode(answer))
            try:
                await self._channel.send(encode(Answer(message.id, body, error)))
            except ChannelClosed:
                return

    async def _refuse(self, message: Call | Note) -> None:
        self.refused += 1
        if isinstance(message, Call):
            with contextlib.suppress(ChannelClosed):
                error = f"{CALLS_AT_MOST} calls of this connection are under way; wait for their answers"
                await self._channel.send(encode(Answer(message.id, msgspec.Raw(encode(Empty())), error)))

    async def _dispatch(self, message: Call | Note) -> Any:  # noqa: ANN401  (each method has its own answer)
        handler = self._handlers.get(message.method)
        if not isinstance(handler, Handler):
            raise UnhealthyError(f"no method {message.method!r} here")
        if handler.body is msgspec.Raw:
            return await handler.function(message.body)
        return await handler.function(msgspec.msgpack.decode(message.body, type=handler.body))

    async def call(self, method: str, body: object, answer: type[Body]) -> Body:
        """Call and wait for the answer. Raises UnhealthyError with the peer's error, LostError when it closes."""
        return msgspec.msgpack.decode(await self.call_raw(method, encode(body)), type=answer)

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
        if answered.error:
            raise UnhealthyError(answered.error)
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
