"""The connections of agents, whose ranks ask through them, and of operators and observers."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection

from c4bench.budget import AGENT, Account, OverBudgetError
from c4bench.control.agents import AgentConnection, AgentConnections, AgentLiveness, log_connected
from c4bench.control.authorisation import Authorisation
from c4bench.control.detection.detection import Detection
from c4bench.control.detection.ras_reports import RasReports
from c4bench.control.detection.telemetry import TelemetryLoop
from c4bench.control.jobs.attached import AttachedJobs
from c4bench.control.jobs.attempts import JobAttempts, JobService
from c4bench.control.jobs.job import Job
from c4bench.control.jobs.rendezvous import Meetings, RendezvousService
from c4bench.control.pages.health import Health
from c4bench.control.paths.service import PathService
from c4bench.control.state.event_log import EventLog
from c4bench.control.state.registry import JobRegistry
from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UsageError
from c4bench.foreign_text import one_line
from c4bench.model.recording import FailureReported, LossReported
from c4bench.model.telemetry import Failure
from c4bench.wire.channel import Channel, ChannelClosed
from c4bench.wire.framing import MESSAGE_BYTES_MAX
from c4bench.wire.messages import (
    Attached,
    AttachedMoves,
    AttachedPath,
    AttachedWord,
    Empty,
    Fail,
    Hello,
    LaunchJob,
    LearnPaths,
    Meet,
    NetworkLost,
    PathsJson,
    QueryProgress,
    QueryResults,
    RasReport,
    RelayMessage,
    Result,
    ReturnHost,
    StopRanks,
    Subscribe,
    Watch,
)
from c4bench.wire.peer import Handler, Peer, Receiver
from c4bench.wire.requests import OF_AGENTS, OF_RANKS, Request, seat_of
from c4bench.wire.trust import Role
from c4bench.wire.window_codec import WindowDecoder, from_message

_logger = logging.getLogger(__name__)

# Characters.
_STATUS_AT_MOST = 80
_ORDERLY_CLOSE = (1000, 1001)
_TOO_LARGE = 1009
# Of attempts in a line of the log.
_NAMED_AT_MOST = 5


class RankRequests:
    """What ranks ask through their agents: each request goes to the part of the master that answers it."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        rendezvous: RendezvousService,
        meetings: Meetings,
        detection: Detection,
        paths: PathService,
        authorisation: Authorisation,
    ) -> None:
        self._jobs, self._rendezvous, self._meetings = jobs, rendezvous, meetings
        self._detection, self._authorisation = detection, authorisation
        self._answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "exchange": rendezvous.exchange,
            "meet": self._meet,
            "fail": self._fail,
            "lost": self._lost,
            "watch": self._watch,
            "word": self._relay,
            "news": rendezvous.poll,
            "qps": paths.choose_qps,
            "route": paths.route,
            "release": paths.release,
            "follow": paths.follow,
            "result": self._result,
        }

    def handlers(self, host: str) -> dict[str, Handler]:
        """The handler of each request of ranks, by the agent of `host`, which speaks for what is there only."""
        return {
            name: Handler(request.body, partial(self._checked, host, request), request.most_bytes)
            for name, request in OF_RANKS.items()
        }

    async def _checked(self, host: str, request: Request, body: Any) -> Any:  # noqa: ANN401
        if not self._authorisation.admits(host, request, body):
            return Empty()
        return await self._answers[request.name](body)

    async def _meet(self, request: Meet) -> Empty:
        await self._meetings.join(request)
        return Empty()

    async def _fail(self, request: Fail) -> Empty:
        # Other ranks write it into their logs.
        said = request.failure
        failure = msgspec.structs.replace(
            said, reason=one_line(said.reason), status=one_line(said.status, _STATUS_AT_MOST)
        )
        request = msgspec.structs.replace(request, failure=failure)
        self._rendezvous.fail(request)
        seat = seat_of(request.failure.rank, request.seats)
        record = FailureReported(time.time(), request.job, request.comm, request.failure, seat)
        self._detection.ingest(request.job, record)
        return Empty()

    async def _lost(self, request: NetworkLost) -> Empty:
        values, fields = (request.job, request.loss.rank, request.loss.component), {"attempt": request.job}
        _logger.warning("%s: rank %d continues without %s", *values, extra=fields)
        seat = seat_of(request.loss.rank, request.seats)
        record = LossReported(time.time(), request.job, request.comm, request.loss, seat)
        self._detection.ingest(request.job, record)
        return Empty()

    async def _relay(self, request: RelayMessage) -> Empty:
        self._rendezvous.relay(request)
        return Empty()

    async def _watch(self, request: Watch) -> Failure:
        return await self._rendezvous.watch(request.job, request.comm, request.seats)

    async def _result(self, result: Result) -> Empty:
        job = self._jobs.get(result.job)
        if job is not None:
            await job.add(result)
        return Empty()


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
        attached: AttachedJobs,
    ) -> None:
        self._agents, self._liveness, self._registry, self._attempts = agents, liveness, registry, attempts
        self._telemetry, self._requests, self._authorisation = telemetry, requests, authorisation
        self._log, self._ras, self._attached = log, ras, attached

    async def serve(self, connection: ServerConnection, channel: Channel, name: str, closing: asyncio.Event) -> None:
        """Serve the agent of the host that its certificate names, until the connection closes."""
        self._agents.refused.setdefault(name, 0)
        peer: Peer
        windows = _Windows(name, self._telemetry, self._attached)

        async def introduce(hello: Hello) -> Empty:
            self._authorisation.admits(name, OF_AGENTS["hello"], hello)
            await self._introduce(hello, peer)
            return Empty()

        async def ingest_ras(report: RasReport) -> None:
            await self._ras.ingest(name, report.packed, time.time())

        own: dict[str, Handler | Receiver] = {
            "hello": Handler(Hello, introduce, OF_AGENTS["hello"].most_bytes),
            "window": Receiver(windows.receive),
            "attached": Handler(Attached, partial(self._attached.report, name), OF_AGENTS["attached"].most_bytes),
            "attached-path": Handler(AttachedPath, partial(self._attached.route, name)),
            "attached-moves": Handler(AttachedMoves, partial(self._attached.moves, name)),
            "attached-word": Handler(AttachedWord, partial(self._attached.bring, name)),
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

    def __init__(self, host: str, telemetry: TelemetryLoop, attached: AttachedJobs) -> None:
        self._host, self._telemetry, self._attached = host, telemetry, attached
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
        self._telemetry.receive(self._attached.translate(window))


class OperatorSession:
    """One connection; the certificate of the other end states its `role`."""

    def __init__(
        self,
        channel: Channel,
        role: Role,
        address: str,
        log: EventLog,
        jobs: JobService,
        paths: PathService,
        health: Callable[[], Health],
    ) -> None:
        self._log, self._jobs, self._paths, self._health = log, jobs, paths, health
        self._who = f"{role} at {address}"
        self._reports: set[asyncio.Task[None]] = set()
        handlers = {"subscribe": Handler(Subscribe, self._subscribe), "health": Handler(Empty, self._tell_health)}
        if role is Role.OPERATOR:
            handlers |= {
                "launch": Handler(LaunchJob, self._launch, MESSAGE_BYTES_MAX),
                "stop": Handler(StopRanks, self._stop),
                "restore": Handler(ReturnHost, self._return_host),
                "ask": Handler(QueryResults, self._query),
                "progress": Handler(QueryProgress, self._jobs.progress),
                "learn": Handler(LearnPaths, self._learn),
            }
        self._peer = Peer(channel, handlers)

    async def serve(self) -> None:
        """Serve until the connection closes."""
        _logger.info("%s connected", self._who)
        try:
            await self._peer.serve()
        finally:
            _logger.info("%s disconnected", self._who)
            for task in self._reports:
                task.cancel()

    async def _subscribe(self, request: Subscribe) -> Empty:
        self._reports.add(asyncio.create_task(self._report(request.first)))
        return Empty()

    async def _tell_health(self, _: Empty) -> Health:
        return self._health()

    async def _report(self, first: int) -> None:
        with contextlib.suppress(ChannelClosed):
            async for event in self._log.follow(first):
                await self._peer.note("event", event)

    async def _launch(self, request: LaunchJob) -> Empty:
        _logger.info("%s starts job %s", self._who, request.job.id, extra={"job": request.job.id})
        await self._jobs.start(request)
        return Empty()

    async def _stop(self, request: StopRanks) -> Empty:
        self._jobs.check_running(request.job)
        _logger.info("%s stops job %s", self._who, request.job, extra={"job": request.job})
        await self._jobs.stop(request.job)
        return Empty()

    async def _return_host(self, request: ReturnHost) -> Empty:
        if not self._jobs.return_hosts(request.host):
            isolated = ", ".join(self._jobs.isolated_hosts()) or "none"
            raise UsageError(
                f"{request.host} is not out of service, and no host is out because of it; out are {isolated}"
            )
        return Empty()

    async def _learn(self, request: LearnPaths) -> PathsJson:
        _logger.info("%s asks for the paths between %s", self._who, ", ".join(request.hosts))
        return PathsJson((await self._paths.learn_between(request.hosts)).to_json())

    async def _query(self, request: QueryResults) -> list[dict[str, Any]]:
        return await self._jobs.results(request)
