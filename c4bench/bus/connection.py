"""A connection to nats-server: mutual TLS, one-line errors, and what is asked of JetStream."""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext, api
from nats.js.errors import APIError
from nats.protocol import parser

from c4bench.bus.incoming import Incoming
from c4bench.bus.subjects import Subjects, inbox
from c4bench.decoding import from_json
from c4bench.errors import RepeatedFailures, UnhealthyError, UsageError
from c4bench.wire.trust import Role, client_context

_logger = logging.getLogger(__name__)

PORT = 4222
_CONNECT_WITHIN_S = 3
_AGAIN_S = 0.25
# By these a connection is noticed that was cut without being closed.
_PING_EVERY_S, _PINGS_UNANSWERED = 1, 2
# What JetStream does not answer within this time is asked again, or given up, by whoever asked.
ANSWER_WITHIN_S = 2.0
_WRONG_LAST, _NO_MESSAGE = (10071, 10164), 10037
FAILURES = (nats.errors.Error, OSError, TimeoutError)
_EXPECT_SUBJECT = api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value
_EXPECT_STREAM = api.Header.EXPECTED_LAST_SEQUENCE.value


class OutdatedError(Exception):
    """Somebody else has written since: what was to be written is not."""


class Stored(NamedTuple):
    """A message of a stream: its number there, the server's time of its arrival (s, or 0), and what it says."""

    sequence: int
    at_s: float
    subject: str
    body: bytes
    deleted: bool = False


class _Found(msgspec.Struct):
    """A message of a stream in the server's answer, with what it says as Base64."""

    seq: int
    time: datetime
    data: bytes = b""


class _Answer(msgspec.Struct):
    """The server's answer to a request for a message: the message, or an error."""

    message: _Found | None = None
    error: dict[str, Any] = {}


# nats-py takes any white space for the end of a subject, nats-server only blanks, tabs and line breaks.
_SUBJECT = rb"([^ \t\r\n]+)[ \t]+"
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+" + _SUBJECT + rb"(\d+)[ \t]+(" + _SUBJECT + rb")?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+" + _SUBJECT + rb"(\d+)[ \t]+(" + _SUBJECT + rb")?(\d+)[ \t]+(\d+)\r\n")


class _Client(Client):
    """A client that reads on whatever a message's subject and headers are: nats-py stops reading."""

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except Exception as error:
            # What it does not understand is no header that we look for.
            _logger.debug("headers of a message: %s", error)
            return None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, *rest: Any) -> Any:  # noqa: ANN401
        """The message; bytes of its subject that are no UTF-8 become text that is no name (see `name_of`)."""
        return super()._build_message(sid, _printable(subject), _printable(reply), *rest)

    async def hang_up(self) -> None:
        """Close the socket of a connection that the server has refused: nats-py leaves it open."""
        if self._transport is not None:
            with suppress(*FAILURES, AttributeError):
                self._transport.close()  # type: ignore[no-untyped-call]
                await asyncio.wait_for(self._transport.wait_closed(), ANSWER_WITHIN_S)  # type: ignore[no-untyped-call]


class Bus:
    """A client of this `role`, whose connection comes back by itself; `reconnects` counts how often it did.

    What it reads is decoded by `incoming`.
    """

    def __init__(
        self, address: str, tls: ssl.SSLContext, name: str, subjects: Subjects, role: Role = Role.AGENT
    ) -> None:
        self.address, self.subjects, self._name = checked_address(address), subjects, name
        self._tls, self._role = tls, role
        self.client, self.incoming = _Client(), Incoming()
        self.reconnects = 0
        self._trouble, self._opened, self._closing = "", False, False

    @property
    def js(self) -> JetStreamContext:
        """JetStream over this connection."""
        return self.client.jetstream(timeout=ANSWER_WITHIN_S)

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self.client.is_connected

    def another(self) -> "Bus":
        """Another connection to the same server, for another thread's loop."""
        return Bus(self.address, self._tls, self._name, self.subjects, self._role)

    async def open(self) -> None:
        """Connect. Raises UnhealthyError if the server cannot be reached or refuses."""
        try:
            await self.client.connect(
                self.address,
                tls=self._tls,
                tls_hostname=Role.BUS,
                name=self._name,
                inbox_prefix=inbox(self._role),
                connect_timeout=_CONNECT_WITHIN_S,
                reconnect_time_wait=_AGAIN_S,  # type: ignore[arg-type]
                max_reconnect_attempts=1,
                allow_reconnect=False,
                ping_interval=_PING_EVERY_S,
                max_outstanding_pings=_PINGS_UNANSWERED,
                error_cb=self._failed,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
            )
            # From now on it tries for ever; the first time it does not.
            self.client.options |= {"allow_reconnect": True, "max_reconnect_attempts": -1}
            self._opened = True
        except FAILURES as error:
            await self.client.hang_up()
            asks = "is nats-server there, with a configuration of c4bench bus config?"
            raise UnhealthyError(f"bus {self.address}: {self._trouble or _why(error)}; {asks}") from None

    async def close(self) -> None:
        """End the connection."""
        self._closing = True
        # A cancellation of its attempts to connect again may be lost, and it would try for ever.
        self.client.options |= {"allow_reconnect": False, "max_reconnect_attempts": 1}
        # Where the connection is lost, nats-py writes to a transport that is no more, or waits for a cancelled one.
        try:
            with suppress(*FAILURES, AttributeError):
                await self.client.close()
        except asyncio.CancelledError:
            if cancelled():
                raise

    async def _failed(self, error: Exception) -> None:
        before, self._trouble = self._trouble, _why(error)
        if self._opened and self._trouble != before:
            _logger.warning("bus %s: %s", self.address, self._trouble)

    async def _disconnected(self) -> None:
        if not self._closing:
            _logger.warning("bus %s: connection lost; trying again every %g s", self.address, _AGAIN_S)

    async def _reconnected(self) -> None:
        self.reconnects, self._trouble = self.reconnects + 1, ""
        _logger.info("bus %s: connected again", self.address)

    async def publish(self, subject: str, body: bytes, *, after: int | None = None, in_stream: bool = False) -> int:
        """Store a message, and return its number in the stream.

        With `after` only if that is the number of the newest message on the subject, or `in_stream`; else raises
        OutdatedError. Raises one of FAILURES if it is not known to be stored.
        """
        expected = _EXPECT_STREAM if in_stream else _EXPECT_SUBJECT
        try:
            stored = await self.js.publish(subject, body, headers=None if after is None else {expected: str(after)})
        except APIError as error:
            if error.err_code in _WRONG_LAST:
                raise OutdatedError(subject) from None
            raise
        return stored.seq

    async def send(self, subject: str, body: bytes) -> None:
        """Send a message that no stream acknowledges. Raises one of FAILURES if the server may not have it."""
        if not self.connected:
            raise ConnectionError(f"the bus {self.address} is gone")
        await self.client.publish(subject, body)
        await self.client.flush(int(ANSWER_WITHIN_S))

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message on a subject; None if there is none. Its headers are not looked at."""
        request = json.dumps({"last_by_subj": subject}).encode()
        answer = await self.client.request(f"$JS.API.STREAM.MSG.GET.{stream}", request, timeout=ANSWER_WITHIN_S)
        found = from_json(answer.data, _Answer)
        if found.message is None and found.error.get("err_code") != _NO_MESSAGE:
            raise APIError.from_error(found.error)
        if found.message is None:
            return None
        return Stored(found.message.seq, _seconds(found.message.time), subject, found.message.data)

    async def purge(self, stream: str, subject: str) -> None:
        """Remove all messages on a subject."""
        await self.js.purge_stream(stream, subject=subject)


def _printable(text: bytes) -> bytes:
    return text.decode(errors="backslashreplace").encode()


def _seconds(time: datetime) -> float:
    """The server's time (s); it writes UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _why(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def checked_address(address: str) -> str:
    """The address of a server. Raises UsageError, which says how to write one."""
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme not in {"nats", "tls"} or not host or not port.isascii() or not port.isdigit():
        raise UsageError(f"bus {address!r}: write nats://HOST:PORT, such as nats://bus.example:{PORT}")
    return address


def bus_tls(trust: Path, name: str) -> ssl.SSLContext:
    """TLS with the certificate of this name in a folder of certificates. Raises UsageError if there is none."""
    if not (trust / f"{name}.pem").exists():
        raise UsageError(f"no certificate of {name} in {trust}; c4bench bus config makes those that the bus needs")
    return client_context(trust / "ca.pem", trust / f"{name}.pem", trust / f"{name}.key")


async def again(work: Callable[[], Awaitable[None]]) -> None:
    """Do something; if it fails because of the bus, wait a while and return, for the caller to do it again."""
    try:
        await work()
    except FAILURES:
        await asyncio.sleep(_AGAIN_S)


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Do something until cancelled, also after it has failed; an error that is not the bus's is reported once."""
    failures = RepeatedFailures()
    while not cancelled():
        try:
            await again(work)
        except Exception as failure:
            failures.note("bus: work that is tried again has failed", failure)
            await asyncio.sleep(_AGAIN_S)
    raise asyncio.CancelledError


def cancelled() -> bool:
    """Whether this task was cancelled; nats-py and `asyncio.wait_for` may drop the exception that says so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@asynccontextmanager
async def opened(bus: Bus) -> AsyncIterator[Bus]:
    """The bus, connected while the context lasts. Raises UnhealthyError if it cannot be reached."""
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()
