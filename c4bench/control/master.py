"""The master's event loop: who is connected, what they tell, what they are asked."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve

from c4bench.c4d.localise import Cell
from c4bench.c4p.knowledge import Knowledge
from c4bench.control.desk import ROLES, Desk
from c4bench.control.detection import Detection, part_of
from c4bench.control.health import AgentHealth, Health, serve_pages
from c4bench.control.jobs import Job
from c4bench.control.lines import Line, start_on, stop_on
from c4bench.control.log import Log
from c4bench.control.register import Register
from c4bench.control.rendezvous import Board
from c4bench.control.roll import Roll
from c4bench.control.routing import Routing
from c4bench.control.steering import Steering
from c4bench.control.store import Store
from c4bench.errors import AbsentHostsError, UnhealthyError
from c4bench.model.event import Diagnosed, PutBack
from c4bench.model.telemetry import Failure, Window
from c4bench.wire.channel import WebSocketChannel
from c4bench.wire.messages import (
    Empty,
    Exchange,
    Fail,
    Follow,
    Hello,
    JobSpec,
    Launch,
    Lost,
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
        self.agents: dict[str, Line] = {}
        self.jobs: dict[str, Job] = {}
        self.store = Store(state)
        self.log = Log(self.store)
        self.routing = Routing(self.jobs, self.agent, keep=self._keep_paths)
        if (paths := self.store.paths()) is not None:
            self.routing.controller.recall(Knowledge.from_json(paths))
        self.detection = Detection(self.routing.ways)
        self.roll = Roll(self.store.state.roll, time.time())
        self.register = Register(self.store, adopt=state is not None)
        self.steering = Steering(self)
        self._board = Board(self.store)
        self._seen: dict[str, AgentHealth] = {}
        self._news = asyncio.Condition()
        self._closing = asyncio.Event()

    def _keep_paths(self, known: Knowledge) -> None:
        if self.store.durable:
            self.store.save_paths(known.to_json())

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `close` or `leave`; `ready` is called once the port is open."""
        for running in self.store.state.jobs.values():
            self._take_up(running.spec, followed=True)
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
            at_work = [tasks.create_task(work) for work in (self._judge(), self.steering.run(), self.routing.run())]
            ready()
            await self._closing.wait()
            for task in at_work:
                task.cancel()
        self.store.close()

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
            await Desk(self, channel, name).serve()
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
                await self._accept(window)

        handlers = {
            "hello": Handler(Hello, hello),
            "window": Handler(Window, window),
            "exchange": Handler(Exchange, self._board.exchange),
            "fail": Handler(Fail, self._fail),
            "lost": Handler(Lost, self._lost),
            "watch": Handler(Watch, self._watch),
            "word": Handler(Word, self._word),
            "news": Handler(News, self._board.news),
            "route": Handler(Route, self.routing.route),
            "release": Handler(Release, self.routing.release),
            "follow": Handler(Follow, self.routing.follow),
            "result": Handler(Result, self._result),
        }
        peer = Peer(channel, handlers)
        try:
            await peer.serve()
        finally:
            seen.refused += peer.refused
            known = self.agents.get(name)
            if known is not None and known.peer is peer:
                del self.agents[name]
                self._farewell(name, connection.close_code)
                await self._announce()

    async def _welcome(self, said: Hello, peer: Peer) -> None:
        self.agents[said.host] = Line(said, peer)
        back = self.roll.came(said.host, time.time())
        if back:
            self.log.tell(back)
        adopted, over = self.register.welcome(said)
        for spec in adopted:
            self._take_up(spec, followed=True)
        for attempt in over:
            await peer.note("stop", Stop(attempt))
        await self._announce()

    def _farewell(self, host: str, code: int | None) -> None:
        """An agent that closes its line and leaves no rank behind is expected no more; any other is missed."""
        if code in _CLOSED_IN_PEACE and host not in self.busy():
            self.roll.left(host)
            self.register.leave(host)
        else:
            self.roll.went(host, time.time())

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

    def busy(self) -> set[str]:
        """The hosts that attempts have ranks on."""
        return {member.host for job in self.jobs.values() for member in job.spec.members}

    async def start(self, launch: Launch) -> Job:
        """Start a job's ranks on their hosts."""
        self.register.enter(launch)
        try:
            return await self.begin(launch.job, followed=True)
        except UnhealthyError:
            await self.stop(launch.job.id)
            raise

    async def begin(self, spec: JobSpec, *, followed: bool) -> Job:
        """Start an attempt's ranks, all but those that run already; C4D judges it when it is `followed`.

        Raises AbsentHostsError for hosts whose agents are not there or do not answer, UnhealthyError when one refuses.
        """
        job = self._take_up(spec, followed=followed)
        by_host: dict[str, list[int]] = {}
        for member in spec.members:
            by_host.setdefault(member.host, []).append(member.rank)
        asked = [start_on(self.agents.get(host), Start(spec, tuple(ranks))) for host, ranks in by_host.items()]
        answered = await asyncio.gather(*asked)
        if absent := [host for host, there in zip(by_host, answered, strict=True) if not there]:
            raise AbsentHostsError(absent, "no agent answers; is it deployed and started? (c4bench doctor)")
        return job

    def _take_up(self, spec: JobSpec, *, followed: bool) -> Job:
        """Know an attempt, with all that an earlier master has written down of it."""
        if spec.id not in self.jobs:
            before = self.store.entries(spec.id)
            self.jobs[spec.id] = Job(spec, self.store, before)
            self._board.admit(spec.id, before)
            if followed:
                self.detection.follow(spec.id)
        return self.jobs[spec.id]

    async def stop(self, name: str) -> None:
        """End a job, whichever attempt of it runs."""
        await self.steering.let_go(name)
        running = self.store.state.jobs.get(name)
        if running is not None:
            await self.end(running.spec.id)
            self.register.strike(name)

    async def end(self, attempt: str, gone: Collection[str] = ()) -> None:
        """End an attempt's ranks wherever their agents can be reached, and forget its flows and findings.

        A host that cannot be reached, as those in `gone` are known not to be, is told when its agent is back.
        """
        known = self.jobs.pop(attempt, None)
        self.register.over(attempt)
        members = known.spec.members if known else ()
        hosts = {member.host: None for member in members if member.host not in gone}
        await asyncio.gather(*(stop_on(self.agents.get(host), attempt) for host in hosts))
        await self.routing.forget(attempt)
        self.detection.forget(attempt)
        self._board.forget(attempt)
        self.store.forget(attempt)

    def put_back(self, name: str) -> list[str]:
        """Put a host back into service by its name, or all that were taken out for the sake of a job, unchecked."""
        found = [out.host for out in self.register.out() if name in (out.host, out.job)]
        for host in found:
            self.register.put_back(host)
            self.log.tell(PutBack(time.time(), host))
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
        self.detection.told(request)
        return Empty()

    async def _lost(self, request: Lost) -> Empty:
        self.detection.lost(request)
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

    async def _accept(self, window: Window) -> None:
        await self.routing.hear(window)
        self.detection.windows[window.host] += 1
        self.roll.saw(window)
        for attempt in sorted({record.job for record in window.ranks} & set(self.jobs)):
            part = part_of(window, attempt)
            await self.jobs[attempt].note_ranks(part.ranks)
            self.jobs[attempt].windows.append(part)
            self.detection.feed(attempt, part)

    def cells(self, job: str) -> Mapping[Cell, float]:
        """The newest delay matrix of a job, seconds per byte; empty before there is one."""
        return self.detection.cells(job)

    def health(self) -> Health:
        """How the master and its agents are."""
        for host, seen in self._seen.items():
            known = self.agents.get(host)
            seen.connected = known is not None
            seen.windows, seen.dropped = self.detection.windows[host], self.detection.dropped[host]
            if known is not None:
                seen.version, seen.rdma = known.hello.version, known.hello.rdma
        return Health(
            self._seen, self.register.jobs(), tuple(self.roll.missing.values()), self.register.out(), self.log.counts()
        )

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(_JUDGE_EVERY_S)
            now_s = time.time()
            for attempt, found in self.detection.judge(now_s).items():
                for diagnosis in found:
                    self.log.tell(Diagnosed(now_s, diagnosis))
                    await self.routing.heed(diagnosis)
                self.steering.consider(attempt, found)
            for event in self.roll.judge(now_s, self.busy()):
                self.log.tell(event)
