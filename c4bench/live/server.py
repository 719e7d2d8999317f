"""Serves the live page over TLS 1.3: files, a sign-in form for tokens, and the stream of server-sent events.

Of HTTP/1.1 (RFC 9112) as much as that needs: one small request on each connection, and one response. Nothing but the
sign-in form, its style and its script is served without a certificate of an operator or an observer, or a token.
Nothing can be changed by any request.
"""

import asyncio
import contextlib
import http.client
import io
import logging
import re
import ssl
import time
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UnhealthyError, UsageError
from c4bench.live.credentials import TokenFile
from c4bench.live.feed import PageSource
from c4bench.wire.gate import Gate, Limits
from c4bench.wire.trust import Role, peer_identity

_logger = logging.getLogger(__name__)
_STATIC = Path(__file__).parent / "static"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILES = {f"/{path.name}": path for path in _STATIC.iterdir() if path.suffix in _KINDS}
_PUBLIC = {"/style.css", "/icon.svg"}
# A cookie of this prefix is sent to this origin only, over TLS only (RFC 6265bis, section 4.1.3.2).
_COOKIE = "__Host-c4bench"
_REQUEST_WITHIN_S = 10.0
_SENT_WITHIN_S = 10.0
_CONNECTIONS_AT_MOST = 256
# A stranger gets the sign-in form, which takes a browser a few connections.
_STRANGERS = Limits(in_all=64, of_address=16)
_VIEWERS_AT_MOST = 32
HEAD_AT_MOST = 16 << 10
_BODY_AT_MOST = 4 << 10
# The target is an absolute path and a query, of the characters that RFC 3986 allows there.
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\w\-./~%!$&'()*+,;=:@?]*) HTTP/1\.[01]")
# Nothing is loaded from elsewhere, nothing runs that is not a file of this server, and nobody may put it into a frame.
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class BadRequestError(Exception):
    """The request cannot be answered but with `status`."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Request(NamedTuple):
    """A request: the path without its query, the query's and the form's first values, and the cookies."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    cookies: Mapping[str, str]


class Response(NamedTuple):
    """A response with its whole body."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = {}

    def encode(self) -> bytes:
        """Its bytes."""
        length = {"Content-Length": str(len(self.body))}
        return _head(self.status, {"Content-Type": self.kind, **length, **self.headers}) + self.body


def _text(status: HTTPStatus, line: str) -> Response:
    """A response of one line."""
    return Response(status, "text/plain; charset=utf-8", f"{line}\n".encode())


def _head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    """The status line and the headers of a response, with those that every response here has."""
    fields = SECURITY | {"Cache-Control": "no-store", "Connection": "close"} | dict(headers)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_request(reader: StreamReader) -> Request | None:
    """The next request; None if the peer has closed. Raises BadRequestError."""
    try:
        start, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
    except IncompleteReadError:
        return None
    except LimitOverrunError:
        raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    line = _REQUEST_LINE.fullmatch(start)
    if line is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    headers = _headers(rest)
    path, _, query = line[2].decode().partition("?")
    form = await _form(reader, headers) if line[1] == b"POST" else {}
    return Request(line[1].decode(), path, _first(query), form, _cookies(headers.get("Cookie", "")))


def _headers(lines: bytes) -> http.client.HTTPMessage:
    try:
        return http.client.parse_headers(io.BytesIO(lines))
    except http.client.HTTPException:
        raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None


async def _form(reader: StreamReader, headers: http.client.HTTPMessage) -> dict[str, str]:
    length = headers.get("Content-Length", "")
    if not length.isascii() or not length.isdigit():
        raise BadRequestError(HTTPStatus.LENGTH_REQUIRED)
    if len(length) > len(str(_BODY_AT_MOST)) or int(length) > _BODY_AT_MOST:
        raise BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        body = await reader.readexactly(int(length))
    except IncompleteReadError:
        raise BadRequestError(HTTPStatus.BAD_REQUEST) from None
    return _first(body)


def _first(query: str | bytes) -> dict[str, str]:
    """The first value of each field of a query or a form."""
    try:
        with decoding():
            text = query.decode() if isinstance(query, bytes) else query
            return {name: values[0] for name, values in parse_qs(text, max_num_fields=16).items()}
    except DecodingError:
        raise BadRequestError(HTTPStatus.BAD_REQUEST) from None


def _cookies(line: str) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(line).items()}
    except CookieError:
        return {}


def page_context(ca: Path | None, certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 with the page's certificate; a peer that shows a certificate must have one of this authority, if any.

    Raises UsageError for a certificate or key that cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(ca)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{certificate} and {key} are no certificate and its key in PEM: {error}") from None
    return context


class PageServer:
    """The page of one master; `feed` has what it shows, `tokens` who may look without a certificate."""

    def __init__(self, feed: PageSource, tokens: TokenFile, clock: Callable[[], float] = time.time) -> None:
        self._feed, self._tokens, self._clock = feed, tokens, clock
        self._gate = Gate("live page", _STRANGERS)
        self._connections: set[asyncio.Task[None]] = set()
        self._viewers = 0

    async def run(self, tls: ssl.SSLContext, address: str, port: int, ready: Callable[[int], None]) -> None:
        """Serve until cancelled; `ready` gets the port once it is open. OSError if it cannot be opened."""
        sockets = self._gate.listen(address, port)
        servers = [await asyncio.start_server(self._accept, sock=one, ssl=tls, limit=HEAD_AT_MOST) for one in sockets]
        ready(sockets[0].getsockname()[1])
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for server in servers:
                server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, ssl.SSLError, asyncio.CancelledError):
                if len(self._connections) <= _CONNECTIONS_AT_MOST:
                    await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_WITHIN_S):
                request = await read_request(reader)
        except BadRequestError as error:
            await _send(writer, _text(error.status, error.status.phrase.lower()).encode())
            return
        if request is None:
            return
        viewer = self._viewer(request, writer)
        if viewer is not None:
            self._gate.admit(writer.get_extra_info("peername"))
        if request.path == "/stream" and viewer is not None and request.method == "GET":
            await self._stream(request, viewer, writer)
        else:
            await _send(writer, self._answer(request, viewer).encode())

    def _viewer(self, request: Request, writer: StreamWriter) -> str | None:
        """Who asks, by certificate or token; None for a stranger, and for the certificate of an agent."""
        tls = writer.get_extra_info("ssl_object")
        if tls.getpeercert():
            try:
                return peer_identity(tls, Role.OPERATOR, Role.OBSERVER).name
            except UnhealthyError as error:
                _logger.warning(
                    "live page: %s refused: %s", (writer.get_extra_info("peername") or ["a peer"])[0], error
                )
                return None
        return self._holder(request.cookies.get(_COOKIE, ""))

    def _holder(self, token: str) -> str | None:
        try:
            return self._tokens.holder(token, self._clock())
        except UsageError as error:
            _logger.warning("live page: %s", error)
            return None

    def _answer(self, request: Request, viewer: str | None) -> Response:
        """The response to everything but the stream."""
        match request.method, request.path:
            case "POST", "/sign-in":
                return self._sign_in(request.form.get("token", "").strip())
            case "GET", "/":
                return _file("/index.html" if viewer else "/sign-in.html")
            case "GET", path if path in _FILES and (viewer or path in _PUBLIC):
                return _file(path)
            case "GET", _ if viewer is None:
                return _text(HTTPStatus.UNAUTHORIZED, "sign in at / with a token, or use a certificate")
            case "GET", _:
                return _text(HTTPStatus.NOT_FOUND, "there is nothing here; the page is at /")
            case _:
                return _text(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read")

    def _sign_in(self, token: str) -> Response:
        """Keep a valid token in a cookie that scripts cannot read and other sites cannot use."""
        if self._holder(token) is None:
            _logger.warning("live page: a sign-in with an unknown or ended token was refused")
            return Response(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": "/#refused"})
        cookie = f"{_COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict"
        return Response(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})

    async def _stream(self, request: Request, viewer: str, writer: StreamWriter) -> None:
        """Send messages until the viewer leaves, reads too slowly, or may not look any more."""
        if self._viewers >= _VIEWERS_AT_MOST:
            await _send(writer, _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers; try later").encode())
            return
        self._viewers += 1
        _logger.info("live page: %s looks on", viewer)
        try:
            await _send(writer, _head(HTTPStatus.OK, {"Content-Type": "text/event-stream"}))
            async for message in self._feed.follow(request.query.get("job", "")):
                if self._viewer(request, writer) is None or writer.is_closing():
                    return
                await _send(writer, message)
        finally:
            self._viewers -= 1


def _file(name: str) -> Response:
    path = _FILES[name]
    return Response(HTTPStatus.OK, _KINDS[path.suffix], path.read_bytes())


async def _send(writer: StreamWriter, data: bytes) -> None:
    """Raises TimeoutError for a peer that does not read."""
    writer.write(data)
    async with asyncio.timeout(_SENT_WITHIN_S):
        await writer.drain()
