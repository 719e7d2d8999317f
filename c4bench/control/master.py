"""The master of a fabric: builds its parts, connects them, and runs the server that agents and operators connect to."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.control.agent_connections import AgentConnections
from c4bench.control.agent_liveness import AgentLiveness
from c4bench.control.agent_session import AgentSessions
from c4bench.control.archiving import Archiving
from c4bench.control.authorisation import Authorisation
from c4bench.control.diagnosis_dispatch import DiagnosisDispatch
from c4bench.control.doubt_prober import DoubtProber
from c4bench.control.event_log import EventLog
from c4bench.control.fleet_state import FleetState
from c4bench.control.garbage import seldom_collected
from c4bench.control.health import Health, agent_health
from c4bench.control.health_page import page, refusal
from c4bench.control.host_recheck import HostRecheck
from c4bench.control.job_attempts import JobAttempts
from c4bench.control.job_registry import JobRegistry
from c4bench.control.job_service import JobService
from c4bench.control.jobs import Job
from c4bench.control.meetings import Meetings
from c4bench.control.operator_session import OperatorSession
from c4bench.control.path_learning import PlannedFabric
from c4bench.control.path_service import PathService
from c4bench.control.probe_jobs import ProbeJobs
from c4bench.control.probe_sweeper import ProbeSweeper
from c4bench.control.rank_requests import RankRequests
from c4bench.control.ras_reports import RasReports
from c4bench.control.rendezvous import RendezvousService
from c4bench.control.steering import Steering
from c4bench.control.store import Store
from c4bench.control.telemetry import Detection, TelemetryLoop
from c4bench.errors import UnhealthyError, report_bug
from c4bench.model.event import Diagnosed
from c4bench.record.archive import Archive
from c4bench.wire.channel import MESSAGE_BYTES_MAX, WAITING_MESSAGES_MAX, WebSocketChannel
from c4bench.wire.gate import Gate
from c4bench.wire.trust import CLIENTS, Identity, Role, peer_identity, server_context

_logger = logging.getLogger(__name__)

# An agent's connection counts as lost when nothing has answered for this long.
_PING_EVERY_S = 2.0
_PING_WITHIN_S = 3.0
_CLOSE_WITHIN_S = 1.0
# Connections that one agent may have; it needs one.
_OF_AN_AGENT = 4
# Telemetry is evaluated ten times a second; a master that has not for this long is not ready.
_EVALUATED_WITHIN_S = 2.0


class Parts:
    """The parts of a master, each given what it needs.

    With a `state` folder they continue where an earlier master was, and adopt the jobs that they find running. Without
    one they end such jobs, because whoever started them is gone. With a `fabric` they plan its flows from the start.
    With an `archive` they write to it what C4D ingests and finds. `store` and `detection` take the place of the
    folder's, and of C4D in this process.
    """

    def __init__(
        self,
        state: Path | None = None,
        fabric: PlannedFabric | None = None,
        archive: Archive | None = None,
        store: Store | None = None,
        detection: Detection | None = None,
    ) -> None:
        jobs: dict[str, Job] = {}
        self.store = store = store or Store(state)
        self.agents = agents = AgentConnections()
        self.log = log = EventLog(store)
        self.archiving = Archiving(archive) if archive else None
        self.detection = detection = detection or Detection(self.archiving, report_bug)
        self.paths = PathService(jobs, agents.peer, keep=self._save_paths, publish=detection.ingest_fabric)
        if (saved := store.paths()) is not None:
            self.paths.controller.recall(PathKnowledge.from_json(saved), time.time())
        if fabric is not None:
            self.paths.plan(fabric)
        self.liveness = AgentLiveness(store.state.roll, time.time())
        self.registry = registry = JobRegistry(store, adopt=store.durable)
        self.rendezvous, self.meetings = RendezvousService(store), Meetings(jobs)
        waits = (self.rendezvous, self.meetings)
        self.attempts = JobAttempts(jobs, agents, store, registry, *waits, detection, self.paths)
        probes = ProbeJobs(registry, self.attempts)
        fleet = FleetState(registry, agents, self.attempts)
        self.steering = Steering(registry, agents, self.attempts, fleet, probes, self.paths, log)
        self.recheck = HostRecheck(registry, fleet, probes, log)
        sweeper = ProbeSweeper(registry, detection, probes)
        prober = DoubtProber(registry, detection, self.paths)
        releases = self.steering.release, sweeper.release, prober.release
        self.jobs = JobService(jobs, registry, self.attempts, log, releases)
        consumers = self.steering.consider, sweeper.consider, prober.consider
        dispatch = DiagnosisDispatch(log, self.paths, consumers)
        self.telemetry = TelemetryLoop(jobs, self.paths, self.liveness, detection, dispatch, log)
        authorisation = Authorisation(jobs, self.paths.live_flow, self.paths.nic)
        requests = RankRequests(jobs, *waits, detection, self.paths, authorisation)
        ras = RasReports(lambda time_s, diagnosis: log.publish(Diagnosed(time_s, diagnosis)), store.save_ras)
        known = agents, self.liveness, registry, self.attempts, self.telemetry, requests, authorisation
        self.sessions = AgentSessions(*known, log, ras)

    def _save_paths(self, paths: PathKnowledge) -> None:
        if self.store.durable:
            self.store.save_paths(paths.to_json())

    def unready(self) -> str:
        """Why telemetry is not being evaluated; "" if it is."""
        if obstacle := self.detection.obstacle():
            return obstacle
        evaluated_s = self.telemetry.evaluated_s
        if evaluated_s is None:
            return "telemetry has not been evaluated yet"
        late_s = time.time() - evaluated_s
        return f"telemetry has not been evaluated for {late_s:.1f} s" if late_s > _EVALUATED_WITHIN_S else ""

    def health(self) -> Health:
        """The health of agents, jobs and links."""
        now_s, ends_s = time.time(), self.detection.window_ends_s
        agents = {
            host: agent_health(
                self.agents.newest_hello(host),
                connected=host in self.agents.by_host,
                windows=self.detection.windows[host],
                dropped=self.detection.dropped[host],
                refused=refused,
                lag_s=now_s - ends_s[host] if host in ends_s else None,
                window_bytes=self.detection.window_bytes[host],
            )
            for host, refused in self.agents.refused.items()
        }
        missing = tuple(self.liveness.missing.values())
        known = agents, self.registry.health(), missing, self.registry.isolated(), self.log.counts()
        lost = tuple(sorted(link.name for link in self.paths.controller.missing))
        links, evaluations = self.paths.link_loads(), self.telemetry.evaluations
        found = self.log.open({running.spec.id for running in self.registry.jobs().values()})
        left_out, names = dict(self.detection.left_out), dict(self.paths.named.names)
        return Health(*known, self.paths.unplanned(), links, lost, evaluations, left_out, found, names)


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
        answer = page(request.path, self._parts.health, self._parts.unready)
        if answer is None:
            self._gate.admit(connection.remote_address)
        return answer

    async def _serve_peer(self, connection: ServerConnection) -> None:
        (name, role), parts = _client(connection), self._parts
        channel, address = WebSocketChannel(connection), str(connection.remote_address[0])
        if role is Role.AGENT:
            await self._serve_agent(connection, channel, name)
        else:
            await OperatorSession(channel, role, address, parts.log, parts.jobs, parts.paths, parts.health).serve()

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
