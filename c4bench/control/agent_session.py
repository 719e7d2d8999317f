"""The connection of an agent: its introduction, its windows, its end, and the requests of its ranks."""

import asyncio
import logging
import time

import msgspec
from websockets.asyncio.server import ServerConnection

from c4bench.budget import AGENT, Account, OverBudgetError
from c4bench.control.agent_connections import AgentConnection, AgentConnections, log_connected
from c4bench.control.agent_liveness import AgentLiveness
from c4bench.control.authorisation import Authorisation
from c4bench.control.event_log import EventLog
from c4bench.control.job_attempts import JobAttempts
from c4bench.control.job_registry import JobRegistry
from c4bench.control.rank_requests import RankRequests
from c4bench.control.ras_reports import RasReports
from c4bench.control.telemetry import TelemetryLoop
from c4bench.decoding import DecodingError, decoding
from c4bench.foreign_text import one_line
from c4bench.wire.channel import MESSAGE_BYTES_MAX, Channel
from c4bench.wire.messages import Empty, Hello, RasReport, StopRanks
from c4bench.wire.peer import Handler, Peer, Receiver
from c4bench.wire.requests import OF_AGENTS
from c4bench.wire.window_codec import WindowDecoder, from_message

_logger = logging.getLogger(__name__)

_ORDERLY_CLOSE = (1000, 1001)
_TOO_LARGE = 1009
# Of attempts in a line of the log.
_NAMED_AT_MOST = 5


class AgentSessions:
    """Serves every agent; `requests` answer what ranks ask through their agents."""

    def __init__(
        self,
        agents: AgentConnections,
        liveness: AgentLiveness,
        registry: JobRegistry,
        attempts: JobAttempts,
        telemetry: TelemetryLoop,
        requests: RankRequests,
        authorisation: Authorisation,
        log: EventLog,
        ras: RasReports,
    ) -> None:
        self._agents, self._liveness, self._registry, self._attempts = agents, liveness, registry, attempts
        self._telemetry, self._requests, self._authorisation = telemetry, requests, authorisation
        self._log, self._ras = log, ras

    async def serve(self, connection: ServerConnection, channel: Channel, name: str, closing: asyncio.Event) -> None:
        """Serve the agent of the host that its certificate names, until the connection closes."""
        self._agents.refused.setdefault(name, 0)
        peer: Peer
        windows = _Windows(name, self._telemetry)

        async def introduce(hello: Hello) -> Empty:
            self._authorisation.admits(name, OF_AGENTS["hello"], hello)
            await self._introduce(hello, peer)
            return Empty()

        async def ingest_ras(report: RasReport) -> None:
            await self._ras.ingest(name, report.packed, time.time())

        own: dict[str, Handler | Receiver] = {
            "hello": Handler(Hello, introduce, OF_AGENTS["hello"].most_bytes),
            "window": Receiver(windows.receive),
            "ras": Handler(RasReport, ingest_ras, OF_AGENTS["ras"].most_bytes),
        }
        peer = Peer(channel, own | self._requests.handlers(name))
        try:
            await peer.serve()
        finally:
            self._agents.refused[name] += peer.refused
            if self._agents.remove(name, peer):
                self._disconnect(name, connection.protocol.close_code, closing=closing.is_set())
                await self._agents.announce()

    async def _introduce(self, hello: Hello, peer: Peer) -> None:
        shown = {field: one_line(getattr(hello, field)) for field in ("version", "code", "rdma")}
        hello = msgspec.structs.replace(hello, **shown)
        self._agents.add(AgentConnection(hello, peer))
        log_connected(hello)
        event = self._liveness.connected(hello.host, time.time())
        if event:
            self._log.publish(event)
        adopted, ended = self._registry.add_agent(hello)
        for spec in adopted:
            _logger.info("%s adopted: ranks found on %s", spec.id, hello.host, extra={"attempt": spec.id})
            self._attempts.admit(spec, followed=True)
        if ended:
            some = ", ".join(ended[:_NAMED_AT_MOST]) + (", ..." if len(ended) > _NAMED_AT_MOST else "")
            values, fields = (len(ended), hello.host, some), {"host": hello.host}
            _logger.info("%d attempts ended, or are not adopted; stopping their ranks on %s: %s", *values, extra=fields)
        for attempt in ended:
            await peer.note("stop", StopRanks(attempt))
        await self._agents.announce()

    def _disconnect(self, host: str, code: int | None, *, closing: bool) -> None:
        """Stop expecting an agent that closes its connection and leaves no rank; any other is expected back."""
        if code in _ORDERLY_CLOSE and host not in self._attempts.busy():
            _logger.info("agent of %s disconnected", host, extra={"host": host})
            self._liveness.left(host)
            self._registry.remove_agent(host)
        else:
            level = logging.INFO if closing else logging.WARNING
            why = f"; a message of it had more than {MESSAGE_BYTES_MAX} bytes" if code == _TOO_LARGE else ""
            values, fields = (host, code, why), {"host": host, "code": code}
            _logger.log(level, "agent of %s lost (close code %s%s)", *values, extra=fields)
            self._liveness.lost(host, time.time())


class _Windows:
    """The windows that come over one connection, of the agent of `host`."""

    def __init__(self, host: str, telemetry: TelemetryLoop) -> None:
        self._host, self._telemetry = host, telemetry
        self._decoder = WindowDecoder(Account(f"names in the windows of {host}", AGENT))
        self._warned = False

    def receive(self, body: msgspec.Raw) -> None:
        """Decode a window and pass it on; one of another host, or that cannot be decoded, is dropped and counted.

        It is decoded at once, also where a newer one will take its place: that one may need its names.
        """
        message = bytes(body)
        self._telemetry.count_bytes(self._host, len(message))
        try:
            with decoding():
                encoded = from_message(message)
                if encoded.host != self._host:
                    self._telemetry.drop(self._host, "foreign window")
                    return
                window = self._decoder.decode(encoded)
        except (DecodingError, OverBudgetError) as error:
            self._telemetry.drop(self._host, "unreadable window")
            if not self._warned:
                self._warned, fields = True, {"host": self._host}
                _logger.warning("windows of %s are dropped: %s", self._host, error, extra=fields)
            return
        self._telemetry.receive(window)
