"""Whole messages over a websocket or over a stream, behind one small interface, and the connection to the master."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from c4bench.errors import UnhealthyError
from c4bench.wire.framing import LENGTH_BYTES, MESSAGE_BYTES_MAX, frame
from c4bench.wire.trust import Role, peer_identity

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


_OPEN_WITHIN_S = 10.0
_REASON_AT_MOST = 300


@asynccontextmanager
async def master_channel(
    address: str, tls: ssl.SSLContext, *, ping_every_s: float = 20.0, ping_within_s: float = 20.0
) -> AsyncIterator[WebSocketChannel]:
    """A channel to the master at the `address` HOST:PORT.

    Raises UnhealthyError if it refuses us or does not have the role of a master; OSError, TimeoutError or
    WebSocketException if it cannot be reached.
    """
    try:
        # Compression would make a message's size, and so its virtual time, depend on its content.
        connection = await connect(
            f"wss://{address}",
            ssl=tls,
            server_hostname=Role.MASTER,
            compression=None,
            open_timeout=_OPEN_WITHIN_S,
            ping_interval=ping_every_s,
            ping_timeout=ping_within_s,
            max_size=MESSAGE_BYTES_MAX,
            max_queue=WAITING_MESSAGES_MAX,
        )
    except InvalidStatus as refused:
        reason = refused.response.body.decode(errors="replace").strip()[:_REASON_AT_MOST]
        raise UnhealthyError(f"the master refuses this connection: {reason or refused}") from None
    async with connection:
        peer_identity(connection.transport.get_extra_info("ssl_object"), Role.MASTER)
        yield WebSocketChannel(connection)
