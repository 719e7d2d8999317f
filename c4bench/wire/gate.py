"""Listening sockets that bound the peers who have connected and not authenticated: in all, by address, and in time.

A connection counts from when it is accepted, so also during the TLS handshake. Descriptors for authenticated peers are
kept free, however many strangers there are.
"""

import asyncio
import ipaddress
import logging
import math
import resource
import socket
from typing import Any, Self

import msgspec

_logger = logging.getLogger(__name__)

_BACKLOG = 1024
# Of the descriptors that this process may have, strangers get one in so many.
_SHARE = 8
# A crowd is logged so often (s) while it lasts.
_WARN_EVERY_S = 60.0
# All addresses of an IPv6 subnet count as one: one machine can have all of them.
_IPV6_PREFIX = 64

Address = Any  # as socket.accept returns it: host and port, and two numbers more for IPv6


class Limits(msgspec.Struct, frozen=True):
    """How many connections may wait to authenticate, in all and of one address, and for how long (s).

    Where there are as many, one that has waited for `patience_s` makes room for another. At most `closing` that have
    made room wait at once until the event loop closes them; until then nobody else makes room.
    """

    in_all: int = 256
    of_address: int = 32
    closing: int = 32
    within_s: float = 10.0
    patience_s: float = 1.0


class _Waiting(msgspec.Struct):
    """A connection that has not authenticated, and when it came."""

    connection: socket.socket
    since_s: float
    timer: asyncio.TimerHandle


class Gate:
    """The connections to a server, called `name` in the log, that have not authenticated."""

    def __init__(self, name: str, limits: Limits = Limits()) -> None:  # noqa: B008  (frozen)
        self._name, self._limits = name, limits
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._in_all = max(1, min(limits.in_all, allowed // _SHARE))
        self._waiting: dict[str, dict[Address, _Waiting]] = {}
        self._closing: set[Address] = set()
        self._count = 0
        self._warned_s = -math.inf

    def listen(self, address: str, port: int) -> list[socket.socket]:
        """Sockets that listen on the address, one for each family that it has. Raises OSError."""
        found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        places = dict.fromkeys((family, place) for family, _, _, _, place in found)
        sockets: list[socket.socket] = []
        try:
            for family, place in places:
                # A port that is chosen for the first family is used for the others too.
                chosen = port or (sockets[0].getsockname()[1] if sockets else 0)
                sockets.append(_Listener.open(family, (place[0], chosen, *place[2:]), self))
        except OSError:
            for opened in sockets:
                opened.close()
            raise
        return sockets

    def admit(self, peer: Address) -> None:
        """The peer with this address has authenticated."""
        self._forget(peer)

    def enter(self, connection: socket.socket, peer: Address) -> None:
        """Count a new connection. Raises ConnectionAbortedError, and closes it, if there is no room."""
        loop = asyncio.get_running_loop()
        if not self._has_room(_source(peer), loop.time()):
            connection.close()
            raise ConnectionAbortedError(f"too many connections from {peer[0]}")
        timer = loop.call_later(self._limits.within_s, self._drop, peer)
        self._waiting.setdefault(_source(peer), {})[peer] = _Waiting(connection, loop.time(), timer)
        self._count += 1

    def leave(self, peer: Address) -> None:
        """The connection has been closed."""
        self._closing.discard(peer)
        self._forget(peer)

    def _forget(self, peer: Address) -> None:
        """The connection does not wait to authenticate any more."""
        source = _source(peer)
        waiting = self._waiting.get(source, {}).pop(peer, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._count -= 1
            if not self._waiting[source]:
                del self._waiting[source]

    def _has_room(self, source: str, now_s: float) -> bool:
        """Whether there is room for one more; an older one of whoever has the most may make it."""
        mine = self._waiting.get(source, {})
        if len(mine) >= self._limits.of_address:
            return self._make_room(source, now_s)
        if self._count >= self._in_all:
            return self._make_room(max(self._waiting, key=lambda one: len(self._waiting[one])), now_s)
        return True

    def _make_room(self, source: str, now_s: float) -> bool:
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            values = (self._name, self._count, len(self._waiting[source]), source)
            _logger.warning(
                "%s: %d connections have not authenticated, %d of them of %s: older ones are closed", *values
            )
        peer, oldest = next(iter(self._waiting[source].items()))
        if now_s - oldest.since_s < self._limits.patience_s or len(self._closing) >= self._limits.closing:
            return False
        self._drop(peer)
        return True

    def _drop(self, peer: Address) -> None:
        """End a connection; the event loop closes it once it has noticed, and may accept many others before."""
        waiting = self._waiting[_source(peer)][peer]
        self._forget(peer)
        self._closing.add(peer)
        try:
            waiting.connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended by itself
            return


class _Accepted(socket.socket):
    """A connection that leaves the gate when it is closed."""

    gate: Gate | None = None
    peer: Address = None

    def close(self) -> None:
        """Close it."""
        if self.gate is not None:
            self.gate.leave(self.peer)
        super().close()


class _Listener(socket.socket):
    """A listening socket whose connections go through a gate."""

    gate: Gate

    @classmethod
    def open(cls, family: int, place: Address, gate: Gate) -> Self:
        """Listen at this place."""
        # asyncio sends at once (TCP_NODELAY) only on sockets of this protocol.
        made = cls(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.gate = gate
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(place)
            made.listen(_BACKLOG)
            made.setblocking(False)
        except OSError:
            made.close()
            raise
        return made

    def accept(self) -> tuple[socket.socket, Address]:
        """The next connection, which counts from now on. Raises ConnectionAbortedError if there is no room for it."""
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        connection = _Accepted(self.family, self.type, self.proto, fileno=descriptor)
        self.gate.enter(connection, peer)
        connection.gate, connection.peer = self.gate, peer
        return connection, peer


def _source(peer: Address) -> str:
    """Whom a connection counts for: an address, or a subnet of IPv6."""
    host = str(peer[0]).partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((host, _IPV6_PREFIX), strict=False))
    return host
