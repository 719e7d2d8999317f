"""The master's event loop: who is connected, what they tell, what they are asked."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve

from c4bench.c4d.localise import Cell
from c4bench.c4p.path_knowledge import PathKnowledge
from c4bench.control.agent_connections import AgentConnection, AgentConnections, log_connected
from c4bench.control.agent_liveness import AgentLiveness
from c4bench.control.detection import Detection
from c4bench.control.event_log import EventLog
from c4bench.control.health_page import AgentHealth, HealthPage, serve_pages
from c4bench.control.job_attempts import JobAttempts
from c4bench.control.job_registry import JobRegistry
from c4bench.control.jobs import Job
from c4bench.control.operator_session import ROLES, OperatorSession
from c4bench.control.path_service import PathService
from c4bench.control.probe_sweeper import ProbeSweeper
from c4bench.control.rendezvous import RendezvousService
from c4bench.control.steering import Steering
from c4bench.control.store import Store
from c4bench.control.telemetry_loop import TelemetryLoop
from c4bench.errors import UnhealthyError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import HostReturned
from c4bench.model.recording import FailureReported, LossReported
from c4bench.model.telemetry import Failure, Window
from c4bench.wire.channel import WebSocketChannel
from c4bench.wire.messages import (
    Empty,
    Exchange,
    Fail,
    FollowGuidance,
    Hello,
    LaunchJob,
    NetworkLost,
    PollInbox,
    RelayMessage,
    Release,
    Result,
    Route,
    StopRanks,
    Watch,
)
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import MASTER, peer_name, server_context

_logger = logging.getLogger(__name__)

# A cut leaves an agent's line open; it is taken for lost when nothing has answered for so long.
_PING_EVERY_S = 2.0
_PING_WITHIN_S = 3.0
_CLOSE_WITHIN_S = 1.0
_CLOSED_IN_PEACE = (1000, 1001)


class Master:
    """One fabric's master. Everything here runs on one event loop; `Cluster` gives tests a blocking face of it.

    With a `state` folder it goes on where an earlier one was, and adopts the jobs that it finds running. Without one it
    ends what it finds: whoever started that is gone.
    """

    def __init__(self, trust: Path, address: str, port: int, state: Path | None = None) -> None:
        self._tls = server_context(trust / "ca.pem", trust / f"{MASTER}.pem", trust / f"{MASTER}.key")
        self._address, self._port = address, port
        self.lines = AgentConnections()
        self.jobs: dict[str, Job] = {}
        self.store = Store(state)
        self.log = EventLog(self.store)
        self.detection = Detection()
        self.routing = PathService(self.jobs, self.lines.peer, keep=self._keep_paths, tell=self.detection.learn)
        if (paths := self.store.paths()) is not None:
            self.routing.controller.recall(PathKnowledge.from_json(paths))
        self.roll = AgentLiveness(self.store.state.roll, time.time())
        self.register = JobRegistry(self.store, adopt=state is not None)
        self._board = RendezvousService(self.store)
        self.attempts = JobAttempts(
            self.jobs, self.lines, self.store, self.register, self._board, self.detection, self.routing
        )
        self.steering = Steering(self)
        self.sweeps = ProbeSweeper(self)
        self._judging = TelemetryLoop(self.jobs, self.detection, self.routing, self.roll, self.log)
        self._seen: dict[str, AgentHealth] = {}
        self._closing = asyncio.Event()

    def _keep_paths(self, known: PathKnowledge) -> None:
        if self.store.durable:
            self.store.save_paths(known.to_json())

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `close` or `leave`; `ready` is called once the port is open."""
        for running in self.store.state.jobs.values():
            self.attempts.take_up(running.spec, followed=True)
        async with (
            serve(
                self._serve_peer,
                self._address,
                self._port,
                ssl=self._tls,
                compression=None,
                process_request=serve_pages(self.health),
                ping_interval=_PING_EVERY_S,
                ping_timeout=_PING_WITHIN_S,
                close_timeout=_CLOSE_WITHIN_S,
            ),
            asyncio.TaskGroup() as tasks,
        ):
            judging = self._judging.run(self.attempts.busy, self._act)
            works = (judging, self.steering.run(), self.routing.run())
            at_work = [tasks.create_task(work) for work in works]
            ready()
            said = (self._address, self._port, len(self.jobs), len(self.register.out()))
            _logger.info("serving on %s:%d; %d jobs taken up, %d hosts out of service", *said)
            await self._closing.wait()
            _logger.info("shutting down; %d jobs continue without a master", len(self.store.state.jobs))
            for task in at_work:
                task.cancel()
        self.store.close()

    def _act(self, attempt: str, found: Sequence[Diagnosis]) -> None:
        self.steering.consider(attempt, found)
        self.sweeps.consider(attempt, found)

    async def close(self) -> None:
        """Stop every job, then have `run` return."""
        for name in list(self.store.state.jobs):
            await self.stop(name)
        self.leave()

    def leave(self) -> None:
        """Have `run` return; jobs go on without a master until there is one again."""
        self._closing.set()

    async def _serve_peer(self, connection: ServerConnection) -> None:
        name = peer_name(connection.transport.get_extra_info("ssl_object"))
        channel = WebSocketChannel(connection)
        if name in ROLES:
            await OperatorSession(self, channel, name, str(connection.remote_address[0])).serve()
        else:
            await self._serve_agent(connection, channel, name)

    async def _serve_agent(self, connection: ServerConnection, channel: WebSocketChannel, name: str) -> None:
        seen = self._seen.setdefault(name, AgentHealth())
        peer: Peer

        async def hello(said: Hello) -> Empty:
            if said.host != name:
                raise UnhealthyError(f"the certificate says {name!r}, the agent {said.host!r}")
            await self._welcome(said, peer)
            return Empty()

        async def window(window: Window) -> None:
            if window.host != name:
                self.detection.dropped[name]["foreign window"] += 1
            else:
                await self._judging.hear(window)

        handlers = {
            "hello": Handler(Hello, hello),
            "window": Handler(Window, window),
            "exchange": Handler(Exchange, self._board.exchange),
            "fail": Handler(Fail, self._fail),
            "lost": Handler(NetworkLost, self._lost),
            "watch": Handler(Watch, self._watch),
            "word": Handler(RelayMessage, self._word),
            "news": Handler(PollInbox, self._board.news),
            "route": Handler(Route, self.routing.route),
            "release": Handler(Release, self.routing.release),
            "follow": Handler(FollowGuidance, self.routing.follow),
            "result": Handler(Result, self._result),
        }
        peer = Peer(channel, handlers)
        try:
            await peer.serve()
        finally:
            seen.refused += peer.refused
            known = self.lines.agents.get(name)
            if known is not None and known.peer is peer:
                del self.lines.agents[name]
                self._farewell(name, connection.close_code)
                await self.lines.announce()

    async def _welcome(self, said: Hello, peer: Peer) -> None:
        self.lines.agents[said.host] = AgentConnection(said, peer)
        log_connected(said)
        back = self.roll.came(said.host, time.time())
        if back:
            self.log.tell(back)
        adopted, over = self.register.welcome(said)
        for spec in adopted:
            _logger.info("%s adopted: ranks found on %s", spec.id, said.host, extra={"attempt": spec.id})
            self.attempts.take_up(spec, followed=True)
        for attempt in over:
            _logger.info("%s has ended; stopping its ranks on %s", attempt, said.host, extra={"attempt": attempt})
            await peer.note("stop", StopRanks(attempt))
        await self.lines.announce()

    def _farewell(self, host: str, code: int | None) -> None:
        """An agent that closes its line and leaves no rank behind is expected no more; any other is missed."""
        if code in _CLOSED_IN_PEACE and host not in self.attempts.busy():
            _logger.info("agent of %s disconnected", host, extra={"host": host})
            self.roll.left(host)
            self.register.leave(host)
        else:
            level = logging.INFO if self._closing.is_set() else logging.WARNING
            _logger.log(level, "agent of %s lost (close code %s)", host, code, extra={"host": host, "code": code})
            self.roll.went(host, time.time())

    async def start(self, launch: LaunchJob) -> Job:
        """Start a job's ranks on their hosts."""
        self.register.enter(launch)
        try:
            return await self.attempts.begin(launch.job, followed=True)
        except UnhealthyError as error:
            _logger.warning("job %s cannot start: %s", launch.job.id, error, extra={"job": launch.job.id})
            await self.stop(launch.job.id)
            raise

    async def stop(self, name: str) -> None:
        """End a job, whichever attempt of it runs."""
        await self.steering.let_go(name)
        await self.sweeps.let_go(name)
        running = self.store.state.jobs.get(name)
        if running is not None:
            await self.attempts.end(running.spec.id)
            self.register.strike(name)
        self.attempts.replaced.pop(name, None)

    def attempts_of(self, name: str) -> list[Job]:
        """All attempts of a running job as far as they are known, the present one last."""
        return [*self.attempts.replaced.get(name, ()), self.jobs[self.register.running(name).spec.id]]

    def put_back(self, name: str) -> list[str]:
        """Put a host back into service by its name, or all that were taken out for the sake of a job, unchecked."""
        found = [out.host for out in self.register.out() if name in (out.host, out.job)]
        for host in found:
            self.register.put_back(host)
            self.log.tell(HostReturned(time.time(), host))
            _logger.info("%s put back into service by hand", host, extra={"host": host})
        return found

    async def meet(self, request: Exchange) -> tuple[bytes, ...]:
        """Wait for the others of an exchange, as one of them; returns what each gave."""
        found = await self._board.exchange(request)
        if found.missing:
            place = f"{request.key!r} of {request.job}"
            raise UnhealthyError(f"ranks {list(found.missing)} did not come to {place} in {request.timeout_s:g} s")
        return found.payloads

    async def _fail(self, request: Fail) -> Empty:
        self._board.fail(request)
        told = FailureReported(time.time(), request.job, request.comm, request.failure)
        self.detection.hear(request.job, told)
        return Empty()

    async def _lost(self, request: NetworkLost) -> Empty:
        said, fields = (request.job, request.loss.rank, request.loss.component), {"attempt": request.job}
        _logger.warning("%s: rank %d continues without %s", *said, extra=fields)
        self.detection.hear(request.job, LossReported(time.time(), request.job, request.comm, request.loss))
        return Empty()

    async def _word(self, request: RelayMessage) -> Empty:
        self._board.word(request)
        return Empty()

    async def _watch(self, request: Watch) -> Failure:
        return await self._board.watch(request.job, request.comm)

    async def _result(self, result: Result) -> Empty:
        job = self.jobs.get(result.job)
        if job is not None:
            await job.add(result)
        return Empty()

    def cells(self, job: str) -> Mapping[Cell, float]:
        """The newest delay matrix of a job, seconds per byte; empty before there is one."""
        return self.detection.cells(job)

    def health(self) -> HealthPage:
        """How the master and its agents are."""
        for host, seen in self._seen.items():
            known = self.lines.agents.get(host)
            seen.connected = known is not None
            seen.windows, seen.dropped = self.detection.windows[host], self.detection.dropped[host]
            if known is not None:
                seen.version, seen.rdma = known.hello.version, known.hello.rdma
        return HealthPage(
            self._seen, self.register.jobs(), tuple(self.roll.missing.values()), self.register.out(), self.log.counts()
        )
