"""Requests to the live page, as browsers and others send them, and the state of a run that it reads."""

import asyncio
from contextlib import contextmanager

import msgspec
from fuzz_mutations import Corpus, of
from fuzzing import Target

from c4bench.control.parts import compose
from c4bench.live.credentials import TokenFile
from c4bench.live.feed import Feed, RunFeed, RunState
from c4bench.live.server import HEAD_AT_MOST, BadRequestError, PageServer, read_request
from c4bench.live.snapshot import take_fleet
from fuzz_targets.wire import loop

_GET = b"GET /?job=a%20b HTTP/1.1\r\nHost: localhost:8443\r\nCookie: __Host-c4bench=token; a=b\r\nAccept: */*\r\n\r\n"
_POST = (
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 15\r\n\r\ntoken=abc&b=%41"
)
_STYLE = b"GET /style.css HTTP/1.0\r\n\r\n"
# Heads that a request may have and that parsers disagree about.
_ODD = (
    b"GET //[ HTTP/1.1\r\n\r\n", b"GET /%2e%2e/%00 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /sign-in HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
)  # fmt: skip


@contextmanager
def _requests(folder):
    """A request as it comes over a connection, and the answer to a stranger and to somebody who may look."""
    with loop() as run:
        tokens = TokenFile(folder)
        tokens.create("someone", 2e9, 1.0)

        async def made():
            return PageServer(Feed(compose(), None), tokens, lambda: 1.0)

        server = run(made())

        async def serve(data):
            reader = asyncio.StreamReader(limit=HEAD_AT_MOST)
            reader.feed_data(data)
            reader.feed_eof()
            request = await read_request(reader)
            if request is not None:
                for viewer in (None, "someone"):
                    assert server._answer(request, viewer).encode().startswith(b"HTTP/1.1 ")
                server._holder(request.cookies.get("__Host-c4bench", ""))

        yield lambda data: run(serve(data))


@contextmanager
def _state(folder):
    """The state that pytest's master writes into a run directory, as its page sends it to a viewer."""
    path = folder / "live.json"
    with loop() as run:

        async def first():
            followed = RunFeed(folder).follow("")
            try:
                return [await anext(followed) for _ in range(2)]
            finally:
                await followed.aclose()

        def consume(data):
            path.write_bytes(data)
            run(first())

        yield consume


def _state_corpus():
    async def made():
        return compose()

    with loop() as run:
        parts = run(made())
    return Corpus("json", (msgspec.json.encode(RunState(take_fleet(parts, 1.0), (), (), 0)),))


TARGETS = (
    Target("http", of("text", _GET, _POST, _STYLE, *_ODD), _requests, (BadRequestError,), sound=False),
    Target("page-state", _state_corpus, _state),
)
