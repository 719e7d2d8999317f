"""As much of HTTP/1.1 (RFC 9112) as the page needs: one small request on each connection, and one response."""

import http.client
import io
import re
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qs

from c4bench.decoding import DecodingError, decoding

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
        return head(self.status, {"Content-Type": self.kind, **length, **self.headers}) + self.body


def text(status: HTTPStatus, line: str) -> Response:
    """A response of one line."""
    return Response(status, "text/plain; charset=utf-8", f"{line}\n".encode())


def head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    """The status line and the headers of a response, with those that every response here has."""
    fields = SECURITY | {"Cache-Control": "no-store", "Connection": "close"} | dict(headers)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read(reader: StreamReader) -> Request | None:
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
