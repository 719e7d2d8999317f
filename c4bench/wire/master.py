"""The connection of an agent, an operator or an observer to the master."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from c4bench.errors import UnhealthyError
from c4bench.wire.channel import WAITING_MESSAGES_MAX, WebSocketChannel
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.trust import Role, peer_identity

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
