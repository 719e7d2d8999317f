"""The server of a master, which agents and operators connect to, and its pages. `parts.py` composes what it serves.

Pages are for programs: health as JSON (`/health`) and as metrics (`/metrics`), `/healthz` and `/readyz`. All are GET
requests on the port that agents connect to, so whoever asks must show a certificate.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from http import HTTPStatus
from pathlib import Path

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from c4bench.control.detection.telemetry import seldom_collected
from c4bench.control.pages.health import Health
from c4bench.control.parts import Parts
from c4bench.control.sessions import OperatorSession
from c4bench.errors import UnhealthyError
from c4bench.wire.channel import WAITING_MESSAGES_MAX, WebSocketChannel
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.gate import Gate
from c4bench.wire.trust import CLIENTS, Identity, Role, peer_identity, server_context

_logger = logging.getLogger(__name__)

# An agent's connection counts as lost when nothing has answered for this long.
_PING_EVERY_S = 2.0
_PING_WITHIN_S = 3.0
_CLOSE_WITHIN_S = 1.0
# Connections that one agent may have; it needs one.
_OF_AN_AGENT = 4


class Master:
    """The server of one fabric's master. It runs on one event loop; `Cluster` lets tests call it from other threads."""

    def __init__(self, parts: Parts, trust: Path, address: str, port: int) -> None:
        self._parts = parts
        self._tls = server_context(trust / "ca.pem", trust / f"{Role.MASTER}.pem", trust / f"{Role.MASTER}.key")
        self._address, self._port = address, port
        self._closing = asyncio.Event()
        self._gate = Gate("master")
        self._agents: dict[str, list[ServerConnection]] = {}
        self._refused: set[str] = set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `close` or `leave`; `ready` is called once the port is open."""
        parts = self._parts
        parts.jobs.restore()
        with seldom_collected():
            await self._serve(ready)
        parts.store.close()

    async def _serve(self, ready: Callable[[], None]) -> None:
        sockets = self._gate.listen(self._address, self._port)
        async with AsyncExitStack() as stack:
            for listening in sockets:
                await stack.enter_async_context(self._server(listening))
            await self._work(ready)

    def _server(self, listening: socket.socket) -> AbstractAsyncContextManager[object]:
        return serve(
            self._serve_peer,
            sock=listening,
            ssl=self._tls,
            compression=None,
            process_request=self._admit,
            ping_interval=_PING_EVERY_S,
            ping_timeout=_PING_WITHIN_S,
            close_timeout=_CLOSE_WITHIN_S,
            max_size=MESSAGE_BYTES_MAX,
            max_queue=WAITING_MESSAGES_MAX,
        )

    async def _work(self, ready: Callable[[], None]) -> None:
        parts = self._parts
        async with asyncio.TaskGroup() as tasks:
            parts.steering.resume()
            works = [parts.telemetry.run(parts.attempts.busy), parts.recheck.run(), parts.paths.run()]
            works += [parts.archiving.run()] if parts.archiving else []
            running = [tasks.create_task(work) for work in works]
            ready()
            jobs = len(parts.registry.jobs())
            values = (self._address, self._port, jobs, len(parts.registry.isolated()))
            _logger.info("serving on %s:%d; %d jobs restored, %d hosts out of service", *values)
            try:
                await self._closing.wait()
            finally:
                parts.steering.cancel()
            _logger.info("shutting down; %d jobs continue without a master", len(parts.registry.jobs()))
            for task in running:
                task.cancel()

    async def close(self) -> None:
        """Stop every job, then have `run` return."""
        await self._parts.jobs.stop_all()
        self.leave()

    def leave(self) -> None:
        """Have `run` return; jobs continue without a master until there is one again."""
        self._closing.set()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a request; None if the peer is to be served. A refusal is logged once: agents try again.

        Whoever gets an answer counts as one that has not authenticated until the connection is closed.
        """
        try:
            _client(connection)
        except UnhealthyError as error:
            line = f"{connection.remote_address[0]} refused: {error}"
            if line not in self._refused:
                self._refused.add(line)
                _logger.warning(line)
            return refusal(str(error))
        answer = page(request.path, self._parts.health.read, self._parts.health.unready)
        if answer is None:
            self._gate.admit(connection.remote_address)
        return answer

    async def _serve_peer(self, connection: ServerConnection) -> None:
        (name, role), parts = _client(connection), self._parts
        channel, address = WebSocketChannel(connection), str(connection.remote_address[0])
        if role is Role.AGENT:
            await self._serve_agent(connection, channel, name)
        else:
            await OperatorSession(channel, role, address, parts.log, parts.jobs, parts.paths, parts.health.read).serve()

    async def _serve_agent(self, connection: ServerConnection, channel: WebSocketChannel, name: str) -> None:
        """Serve an agent. Of its older connections, which it may have lost without our knowing, a few are kept."""
        mine = self._agents.setdefault(name, [])
        mine.append(connection)
        for older in mine[:-_OF_AN_AGENT]:
            older.transport.abort()
        try:
            await self._parts.sessions.serve(connection, channel, name, self._closing)
        finally:
            mine.remove(connection)
            if not mine:
                self._agents.pop(name, None)


def _client(connection: ServerConnection) -> Identity:
    """Who has connected. Raises UnhealthyError for a certificate that is not of a client."""
    return peer_identity(connection.transport.get_extra_info("ssl_object"), *CLIENTS)


_JSON = "application/json"
_TEXT = "text/plain"
_NO_METRICS = b"prometheus-client is not installed here: pip install prometheus-client\n"


def page(path: str, health: Callable[[], Health], unready: Callable[[], str]) -> Response | None:
    """The answer to a GET request; None if the path is the websocket's. `unready` says why it is not ready, or ""."""
    match path:
        case "/healthz":
            return _response(HTTPStatus.OK, _TEXT, b"ok\n")
        case "/readyz":
            reason = unready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
            return _response(status, _TEXT, f"{reason or 'ok'}\n".encode())
        case "/health":
            return _response(HTTPStatus.OK, _JSON, msgspec.json.format(msgspec.json.encode(health()), indent=2) + b"\n")
        case "/metrics":
            return _metrics(health)
        case "/":
            return None
        case _:
            return _response(HTTPStatus.NOT_FOUND, _TEXT, b"there are /health, /metrics, /healthz and /readyz\n")


def _metrics(health: Callable[[], Health]) -> Response:
    try:
        # The Prometheus library takes long to load, is an extra, and few masters are asked for metrics.
        from c4bench.control.pages import metrics  # noqa: PLC0415
    except ImportError:
        return _response(HTTPStatus.NOT_IMPLEMENTED, _TEXT, _NO_METRICS)
    return _response(HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.render(health()))


def refusal(reason: str) -> Response:
    """The answer to any request of a peer that may not connect."""
    return _response(HTTPStatus.FORBIDDEN, _TEXT, f"{reason}\n".encode())


def _response(status: HTTPStatus, kind: str, body: bytes) -> Response:
    headers = Headers([("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")])
    return Response(status.value, status.phrase, headers, body)
