"""The master's event loop: who is connected, what they tell, what they are asked."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from websockets.asyncio.server import ServerConnection, serve

from c4bench.c4d.detector import Detector
from c4bench.c4d.localise import Cell
from c4bench.c4p.atlas import Atlas
from c4bench.c4p.planner import plan
from c4bench.control.jobs import Job
from c4bench.control.rendezvous import Board
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.fabric import Flow
from c4bench.model.fabric import Path as FabricPath
from c4bench.model.telemetry import Failure, Window
from c4bench.wire.channel import WebSocketChannel
from c4bench.wire.messages import (
    Empty,
    Exchange,
    Fail,
    Hello,
    JobSpec,
    News,
    Release,
    Result,
    Route,
    Start,
    Stop,
    Watch,
    Word,
)
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import MASTER, peer_name, server_context

_JUDGE_EVERY_S = 0.1


class Agents(msgspec.Struct):
    """One connected agent."""

    hello: Hello
    peer: Peer


class Master:
    """One fabric's master. Everything here runs on one event loop; `Cluster` gives tests a blocking face of it."""

    def __init__(self, trust: Path, address: str, port: int) -> None:
        self._tls = server_context(trust / "ca.pem", trust / f"{MASTER}.pem", trust / f"{MASTER}.key")
        self._address, self._port = address, port
        self.agents: dict[str, Agents] = {}
        self.jobs: dict[str, Job] = {}
        self.atlas: Atlas | None = None
        self.diagnoses: list[Diagnosis] = []
        self._placed: dict[str, tuple[Flow, FabricPath]] = {}
        self._detectors: dict[str, Detector] = {}
        self._board = Board()
        self._news = asyncio.Condition()
        self._closing = asyncio.Event()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `close`; `ready` is called once the port is open."""
        async with serve(self._serve_agent, self._address, self._port, ssl=self._tls, compression=None):
            judging = asyncio.create_task(self._judge())
            ready()
            await self._closing.wait()
            judging.cancel()

    async def close(self) -> None:
        """Stop every job, then have `run` return."""
        for job in list(self.jobs):
            await self.stop(job)
        self._closing.set()

    async def _serve_agent(self, connection: ServerConnection) -> None:
        name = peer_name(connection.transport.get_extra_info("ssl_object"))
        peer: Peer

        async def hello(said: Hello) -> Empty:
            if said.host != name:
                raise UnhealthyError(f"the certificate says {name!r}, the agent {said.host!r}")
            self.agents[name] = Agents(said, peer)
            await self._announce()
            return Empty()

        async def window(window: Window) -> None:
            if window.host == name:
                await self._accept(window)

        handlers = {
            "hello": Handler(Hello, hello),
            "window": Handler(Window, window),
            "exchange": Handler(Exchange, self._board.exchange),
            "fail": Handler(Fail, self._fail),
            "watch": Handler(Watch, self._watch),
            "word": Handler(Word, self._word),
            "news": Handler(News, self._board.news),
            "route": Handler(Route, self._route),
            "release": Handler(Release, self._release),
            "result": Handler(Result, self._result),
        }
        peer = Peer(WebSocketChannel(connection), handlers)
        try:
            await peer.serve()
        finally:
            known = self.agents.get(name)
            if known is not None and known.peer is peer:
                del self.agents[name]
                await self._announce()

    async def _announce(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()` is true of the master's state; False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(holds)
        return holds()

    def agent(self, host: str) -> Peer:
        """The line to a host's agent. Raises UnhealthyError when there is none."""
        known = self.agents.get(host)
        if known is None:
            raise UnhealthyError(f"{host}: no agent is connected; is it deployed and started? (c4bench doctor)")
        return known.peer

    async def start(self, spec: JobSpec) -> Job:
        """Start the job's ranks on their hosts."""
        if spec.id in self.jobs:
            raise UsageError(f"a job {spec.id!r} is running already")
        job = self.jobs[spec.id] = Job(spec)
        by_host: dict[str, list[int]] = {}
        for member in spec.members:
            by_host.setdefault(member.host, []).append(member.rank)
        for host, ranks in by_host.items():
            await self.agent(host).call("start", Start(spec, tuple(ranks)), Empty)
        return job

    async def stop(self, job: str) -> None:
        """End the job's ranks wherever their agents can be reached, and forget its flows and findings."""
        known = self.jobs.pop(job, None)
        for host in {member.host for member in known.spec.members} if known else ():
            with contextlib.suppress(UnhealthyError):
                await self.agent(host).call("stop", Stop(job), Empty)
        self._placed = {flow: placed for flow, placed in self._placed.items() if placed[0].job != job}
        self._detectors.pop(job, None)
        self._board.forget(job)

    async def meet(self, request: Exchange) -> tuple[bytes, ...]:
        """Wait for the others of an exchange, as one of them; returns what each gave."""
        found = await self._board.exchange(request)
        if found.missing:
            place = f"{request.key!r} of {request.job}"
            raise UnhealthyError(f"ranks {list(found.missing)} did not come to {place} in {request.timeout_s:g} s")
        return found.payloads

    async def _fail(self, request: Fail) -> Empty:
        self._board.fail(request)
        detector = self._detectors.get(request.job)
        if detector is not None:
            detector.told(request.job, request.comm, request.failure)
        return Empty()

    async def _word(self, request: Word) -> Empty:
        self._board.word(request)
        return Empty()

    async def _watch(self, request: Watch) -> Failure:
        return await self._board.watch(request.job, request.comm)

    async def _result(self, result: Result) -> Empty:
        job = self.jobs.get(result.job)
        if job is not None:
            await job.add(result)
        return Empty()

    async def _route(self, request: Route) -> tuple[int, ...]:
        """Place these flows beside those already placed."""
        if self.atlas is None:
            return tuple(0 for _ in request.flows)
        fixed = {flow: path for flow, (_, path) in self._placed.items()}
        every = {flow.id: flow for flow, _ in self._placed.values()} | {flow.id: flow for flow in request.flows}
        placed = {placement.flow: placement.path for placement in plan(tuple(every.values()), self.atlas, fixed=fixed)}
        for flow in request.flows:
            self._placed[flow.id] = (flow, placed[flow.id])
            if flow.job in self.jobs:
                self.jobs[flow.job].placed[flow] = placed[flow.id]
        return tuple(placed[flow.id].source_port for flow in request.flows)

    async def _release(self, request: Release) -> Empty:
        for flow in request.flows:
            self._placed.pop(flow, None)
        return Empty()

    async def _accept(self, window: Window) -> None:
        for job in sorted({record.job for record in window.ranks} & set(self.jobs)):
            part = _of_job(window, job)
            await self.jobs[job].note_ranks(part.ranks)
            self.jobs[job].windows.append(part)
            self._detectors.setdefault(job, Detector()).feed(part)

    def cells(self, job: str) -> Mapping[Cell, float]:
        """The newest delay matrix of a job, seconds per byte; empty before there is one."""
        detector = self._detectors.get(job)
        return detector.cells(job) if detector else {}

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(_JUDGE_EVERY_S)
            found = [diagnosis for detector in self._detectors.values() for diagnosis in detector.judge(time.time())]
            if found:
                self.diagnoses += found
                await self._announce()


def _of_job(window: Window, job: str) -> Window:
    """The part of a host's window that belongs to one job."""
    comms = {record.comm for record in window.comms if record.job == job}
    return msgspec.structs.replace(
        window,
        comms=tuple(record for record in window.comms if record.comm in comms),
        ranks=tuple(record for record in window.ranks if record.job == job),
        ops=tuple(record for record in window.ops if record.comm in comms),
        conns=tuple(record for record in window.conns if record.comm in comms),
        arrivals=tuple(record for record in window.arrivals if record.comm in comms),
    )
