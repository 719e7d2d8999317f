"""Whole messages over a websocket or over a stream, behind one small interface."""

import asyncio
from typing import Protocol

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from c4bench.wire.framing import LENGTH_BYTES, MESSAGE_BYTES_MAX, frame

# Messages of a connection that have arrived and wait to be handled.
WAITING_MESSAGES_MAX = 4


class ChannelClosed(Exception):  # noqa: N818  (a state, not a fault)
    """The other side is gone."""


class Channel(Protocol):
    """Sends and receives whole messages."""

    async def send(self, message: bytes) -> None:
        """Send one message. Raises ChannelClosed."""

    async def receive(self) -> bytes:
        """Wait for one message. Raises ChannelClosed."""

    async def close(self) -> None:
        """End the connection."""


class WebSocketChannel:
    """Between hosts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, message: bytes) -> None:
        """Send one message. Raises ChannelClosed."""
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise ChannelClosed(str(error)) from None

    async def receive(self) -> bytes:
        """Wait for one message. Raises ChannelClosed."""
        try:
            message = await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            raise ChannelClosed(str(error)) from None
        assert isinstance(message, bytes)
        return message

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()


class StreamChannel:
    """Within a host, between a rank and its agent: length-prefixed messages on a UNIX stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, message: bytes) -> None:
        """Send one message. Raises ChannelClosed."""
        try:
            self._writer.write(frame(message))
            await self._writer.drain()
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    async def receive(self) -> bytes:
        """Wait for one message. Raises ChannelClosed, also when one is absurdly long."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES))
            if length > MESSAGE_BYTES_MAX:
                raise ChannelClosed(f"a message of {length} bytes")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChannelClosed(str(error)) from None

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
