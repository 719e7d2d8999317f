"""The agent's event loop: a connection to the master, a socket for its ranks, and a socket to the spawner.

It runs in the agent's process after the fork of its spawner, until SIGTERM.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from websockets.exceptions import WebSocketException

import c4bench
from c4bench.agent.moves import PlannedQps, Send
from c4bench.agent.ranks import Ranks, log_of, rotate
from c4bench.agent.spawner import Report, Spawn, Started
from c4bench.agent.window_message import WindowMessages
from c4bench.attach.relay import WordRelay
from c4bench.attach.server import AttachedProcess, AttachServer, PathAnswer, PathQuestion, make_folder, user_ids
from c4bench.errors import UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import ASK_QPS, Nic
from c4bench.model.telemetry import RankRecord
from c4bench.model.window import Window
from c4bench.verbs.addressing import SOURCE_PORTS, label_for
from c4bench.verbs.probe import send_bursts, send_probes
from c4bench.verbs.ticks import Ticks
from c4bench.wire.channel import ChannelClosed, StreamChannel, master_channel
from c4bench.wire.framing import LENGTH_BYTES, MESSAGE_BYTES_MAX, frame
from c4bench.wire.messages import (
    AttachedMoves,
    AttachedPath,
    AttachedWord,
    Empty,
    Hello,
    RasReport,
    Seated,
    StartRanks,
    StopRanks,
)
from c4bench.wire.peer import Handler, LostError, Peer
from c4bench.wire.probes import (
    BurstRequest,
    Heard,
    HeardRequest,
    ListenRequest,
    NumberRequest,
    ProbeAnswer,
    ProbeRequest,
)
from c4bench.wire.requests import OF_RANKS, Relay, Request

if TYPE_CHECKING:
    from c4bench.verbs.numbered_packets import ArrivalCounter
import importlib
import signal

from c4bench.agent.spawner import release_and_freeze
from c4bench.wire.trust import client_context


class ArrivalCounts:
    """Counters by NIC and token; `nic` returns this host's NIC of an index."""

    def __init__(self, nic: Callable[[int], Nic]) -> None:
        self._nic = nic
        self._counters: dict[tuple[int, int], ArrivalCounter] = {}

    async def listen(self, request: ListenRequest) -> Empty:
        """Count from now on. A master that never asks leaves nothing open."""
        from c4bench.verbs.numbered_packets import ArrivalCounter  # noqa: PLC0415  (seldom needed, and it takes memory)

        loop = asyncio.get_running_loop()
        counter = ArrivalCounter(self._nic(request.nic), request.token)
        loop.add_reader(counter.socket, counter.read)
        self._counters[request.nic, request.token] = counter
        loop.call_later(request.within_s, self._end, request.nic, request.token)
        return Empty()

    async def heard(self, request: HeardRequest) -> Heard:
        """End a count and return it. Raises UnhealthyError if there is none."""
        heard = self._end(request.nic, request.token)
        if heard is None:
            raise UnhealthyError(f"no packets are counted at NIC {request.nic} under {request.token}; ask sooner")
        return heard

    def _end(self, nic: int, token: int) -> Heard | None:
        counter = self._counters.pop((nic, token), None)
        if counter is None:
            return None
        asyncio.get_running_loop().remove_reader(counter.socket)
        return Heard(counter.close())


_logger = logging.getLogger(__name__)

_RECONNECT_S = 0.5
# By these the agent notices a connection that was cut without being closed.
_PING_EVERY_S = 5.0
_PING_WITHIN_S = 10.0
# With a bus the master gets one window of so many, and each in which a process of a rank has changed.
_MASTER_GETS_EVERY = 10


class WindowSender(Protocol):
    """What takes windows to detectors."""

    def put(self, window: Window) -> None:
        """Send the window as soon as possible; if an earlier one still waits, that one is left out."""

    async def run(self) -> None:
        """Send windows until cancelled."""


class Agent:
    """One host's agent. Windows for detectors go to the `bus`, if there is one."""

    def __init__(
        self, config: AgentConfig, tls: ssl.SSLContext, spawner: socket.socket, bus: WindowSender | None = None
    ) -> None:
        self._config = config
        self._tls = tls
        self._spawner, self._bus = spawner, bus
        self._ranks = Ranks(config)
        self._messages = WindowMessages()
        self._arrivals = ArrivalCounts(self._nic)
        self._words = WordRelay(config.nics, self._forward)
        self._processes: tuple[RankRecord, ...] = ()  # as the master knows them
        self._master: Peer | None = None
        self._connected = asyncio.Event()
        self._trouble = ""  # the connection failure that was logged last
        self._starting: dict[tuple[str, int], asyncio.Future[int]] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        Path(self._config.state).mkdir(parents=True, exist_ok=True)
        Path(self._config.socket).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve_rank, self._config.socket)
        programs = await self._listen_for_programs()
        values = (self._config.name, self._config.socket, self._config.master, self._config.port)
        _logger.info("agent of %s listens for ranks on %s; master %s:%d", *values)
        if problem := rdma_problem():
            _logger.warning("ranks cannot run on this host: %s", problem)
        try:
            async with server:
                await self._work()
        finally:
            # Programs stay connected, and are not waited for.
            programs.close()
            self._ranks.attached.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_spawner())
            tasks.create_task(self._ship_windows())
            tasks.create_task(self._keep_connected())
            tasks.create_task(rotate(self._ranks.logs))
            tasks.create_task(self._list_attached())
            if self._bus is not None:
                tasks.create_task(self._bus.run())
            if self._config.ras:
                from c4bench.agent.ras_poll import RasPoller  # noqa: PLC0415  (few agents ask, and it takes memory)

                poller = RasPoller(self._config.ras, self._config.ras_every_s, self._send_ras, self._config.ras_users)
                tasks.create_task(poller.run())

    async def _listen_for_programs(self) -> asyncio.Server:
        """Listen for programs of others, whose records lie in a folder that is made for them."""
        records, attached = Path(self._config.attach_records), self._ranks.attached
        try:
            make_folder(records)
        except OSError as error:
            _logger.warning("programs of others are not recorded: %s", error)
        users = user_ids(self._config.attach_users)
        return await AttachServer(
            Path(self._config.attach_socket), users, attached.add, self._route, self._planned, self._words
        ).start()

    async def _list_attached(self) -> None:
        """Have the master know which processes are attached, whenever that changes or it is another master."""
        attached = self._ranks.attached
        while True:
            await attached.changed.wait()
            await self._connected.wait()
            attached.changed.clear()
            if self._master is not None:
                try:
                    attached.seat(await self._master.call("attached", attached.listed(), Seated))
                except LostError:
                    attached.changed.set()
                    await asyncio.sleep(_RECONNECT_S)
                except UnhealthyError as error:
                    _logger.warning("programs of others are not followed: %s", error)

    async def _route(self, process: AttachedProcess, question: PathQuestion) -> PathAnswer:
        """The path of a queue pair of a program."""
        if not await self._ranks.attached.seated(process.pid) or self._master is None:
            return PathAnswer()
        asked = AttachedPath(process.pid, question.source, question.destination, question.qp)
        port = await self._master.call("attached-path", asked, int)
        if port == ASK_QPS and question.remote_qp:
            asked = msgspec.structs.replace(asked, remote_qp=question.remote_qp)
            port = await self._master.call("attached-path", asked, int)
        return PathAnswer(label_for(port) if port in SOURCE_PORTS else 0)

    def _planned(self, process: AttachedProcess, send: Send) -> PlannedQps:
        return PlannedQps(process, self._moves, send)

    async def _moves(self, request: AttachedMoves) -> dict[int, int]:
        await self._connected.wait()
        if self._master is None:
            raise LostError("the master is gone")
        return await self._master.call("attached-moves", request, dict[int, int], abandons=True)

    async def _forward(self, word: AttachedWord) -> None:
        if self._master is not None:
            await self._master.note("attached-word", word)

    async def _take_word(self, word: AttachedWord) -> None:
        self._words.deliver(word)

    async def _keep_connected(self) -> None:
        while True:
            try:
                async with master_channel(
                    f"{self._config.master}:{self._config.port}",
                    self._tls,
                    ping_every_s=_PING_EVERY_S,
                    ping_within_s=_PING_WITHIN_S,
                ) as channel:
                    await self._serve_master(Peer(channel, self._handlers()))
                self._log_trouble("connection closed by the master")
            except (OSError, WebSocketException, TimeoutError, UnhealthyError) as error:
                self._log_trouble(str(error) or type(error).__name__)
            await asyncio.sleep(_RECONNECT_S)

    def _log_trouble(self, why: str) -> None:
        """Log a failed connection once, not at every retry."""
        if why != self._trouble:
            self._trouble = why
            values = (self._config.master, self._config.port, why, _RECONNECT_S)
            _logger.warning("no connection to the master %s:%d: %s; retrying every %g s", *values)

    def _handlers(self) -> dict[str, Handler]:
        return {
            "start": Handler(StartRanks, self._start, MESSAGE_BYTES_MAX),
            "stop": Handler(StopRanks, self._stop),
            "probe": Handler(ProbeRequest, self._probe, MESSAGE_BYTES_MAX),
            "burst": Handler(BurstRequest, self._burst, MESSAGE_BYTES_MAX),
            "listen": Handler(ListenRequest, self._arrivals.listen),
            "number": Handler(NumberRequest, self._number, MESSAGE_BYTES_MAX),
            "heard": Handler(HeardRequest, self._arrivals.heard),
            "attached-word": Handler(AttachedWord, self._take_word),
        }

    async def _serve_master(self, master: Peer) -> None:
        serving = asyncio.create_task(master.serve())
        try:
            code = str(Path(c4bench.__file__).parent)
            hello = Hello(self._config.name, c4bench.__version__, code, rdma_problem(), self._ranks.alive())
            await master.call("hello", hello, Empty)
            self._messages.begin()
            self._master, self._trouble = master, ""
            if self._ranks.attached.here:
                self._ranks.attached.changed.set()
            self._connected.set()
            _logger.info("connected to the master %s:%d", self._config.master, self._config.port)
            await serving
        finally:
            self._master = None
            self._connected.clear()
            serving.cancel()

    async def _start(self, request: StartRanks) -> Empty:
        """Start the ranks that do not run yet; a restarted master may repeat the request."""
        for rank in self._ranks.admit(request):
            self._config.ring(request.job.id, rank).parent.mkdir(parents=True, exist_ok=True)
            log = str(log_of(self._config.state, request.job.id, rank))
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._starting[request.job.id, rank] = future
            await asyncio.get_running_loop().sock_sendall(
                self._spawner, frame(msgspec.msgpack.encode(Spawn(request.job, rank, log)))
            )
            await future
        return Empty()

    async def _stop(self, request: StopRanks) -> Empty:
        self._ranks.stop(request.job)
        return Empty()

    async def _probe(self, request: ProbeRequest) -> ProbeAnswer:
        if request.qps and len(request.qps) != len(request.probes):
            raise UnhealthyError(f"{len(request.qps)} queue pairs for {len(request.probes)} probes; name one for each")
        send = partial(
            send_probes,
            self._nic(request.nic),
            request.probes,
            request.timeout_s,
            rate_pps=request.rate_pps,
            to_port=request.to_port,
            traffic_class=request.traffic_class,
            qps=request.qps,
        )
        return ProbeAnswer(tuple(await asyncio.to_thread(send)))

    async def _burst(self, request: BurstRequest) -> Empty:
        if request.qp:
            return await self._burst_by_qp(request)
        bursts = [(burst.source_port, burst.hops, burst.count) for burst in request.bursts]
        nic = self._nic(request.nic)
        await asyncio.to_thread(send_bursts, nic, request.destination, bursts, request.rate_pps, request.traffic_class)
        return Empty()

    async def _burst_by_qp(self, request: BurstRequest) -> Empty:
        from c4bench.verbs.qp_burst import send_burst_by_qp  # noqa: PLC0415  (pyverbs, which agents seldom need)

        for burst in request.bursts:
            packets = request.destination, burst.source_port, request.qp, burst.count, request.traffic_class
            await asyncio.to_thread(send_burst_by_qp, self._nic(request.nic), *packets)
        return Empty()

    async def _number(self, request: NumberRequest) -> Empty:
        from c4bench.verbs.numbered_packets import send_numbered  # noqa: PLC0415  (seldom needed, and it takes memory)

        packets = request.count, request.token, request.rate_pps, request.traffic_class, request.train_bytes
        await asyncio.to_thread(send_numbered, self._nic(request.nic), request.flows, *packets)
        return Empty()

    def _nic(self, index: int) -> Nic:
        nic = next((nic for nic in self._config.nics if nic.index == index), None)
        if nic is None:
            raise UnhealthyError(f"{self._config.name} has no NIC {index}")
        return nic

    async def _follow_spawner(self) -> None:
        self._spawner.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=self._spawner.dup())
        with contextlib.closing(writer):
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                report = msgspec.msgpack.decode(await reader.readexactly(length), type=Report)
                if isinstance(report, Started):
                    self._ranks.started(report)
                    self._starting.pop((report.job, report.rank)).set_result(report.pid)
                else:
                    self._ranks.exited(report)

    async def _ship_windows(self) -> None:
        last = time.time()
        with contextlib.closing(Ticks(self._config.window_s, self._config.window_phase)) as ticks:
            while True:
                await ticks.wait()
                now = time.time()
                if self._ranks.any and (self._master is not None or self._bus is not None):
                    await self._ship(self._ranks.window(last, now))
                last = now

    async def _ship(self, window: Window) -> None:
        """Send a window to the bus and to the master, which with a bus gets only some: it judges none."""
        if self._bus is not None:
            self._bus.put(window)
            if window.sequence % _MASTER_GETS_EVERY and window.ranks == self._processes:
                return
        if self._master is not None:
            with contextlib.suppress(ChannelClosed):
                await self._master.note("window", self._messages.encode(window))
                self._processes = window.ranks

    async def _send_ras(self, report: RasReport) -> None:
        """Pass a report of RAS to the master, if there is one."""
        if self._master is not None:
            with contextlib.suppress(ChannelClosed):
                await self._master.note("ras", report)

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers = {
            name: Handler(msgspec.Raw, partial(self._relay, request), request.most_bytes)
            for name, request in OF_RANKS.items()
        }
        with contextlib.closing(writer):
            await Peer(StreamChannel(reader, writer), handlers).serve()

    async def _relay_at_once(self, request: Request, body: msgspec.Raw) -> msgspec.Raw:
        if self._master is None:
            raise UnhealthyError(f"{request.name}: the agent has lost its master")
        return msgspec.Raw(await self._master.call_raw(request.name, bytes(body)))

    async def _relay(self, request: Request, body: msgspec.Raw) -> msgspec.Raw:
        """Ask the master, such as for a `route`; most requests are repeated when it is lost: jobs do not fail by that.

        A rank that does not wait any more has closed its communicator.
        """
        if request.relay is Relay.AT_ONCE:
            return await self._relay_at_once(request, body)
        abandons = request.relay is Relay.WAITING
        while True:
            await self._connected.wait()
            if self._master is not None:
                with contextlib.suppress(LostError):
                    return msgspec.Raw(await self._master.call_raw(request.name, bytes(body), abandons=abandons))
            # The loss may be known here before the task that serves the connection has noticed.
            await asyncio.sleep(_RECONNECT_S)


def rdma_problem() -> str:
    """Why no RDMA device can be used here; empty if one can."""
    devices = Path("/dev/infiniband")
    if not any(devices.glob("uverbs*")):
        return "no RDMA device: nothing in /dev/infiniband"
    if not any(os.access(path, os.R_OK | os.W_OK) for path in devices.glob("uverbs*")):
        return f"no RDMA device may be opened by user {os.getuid()}: check the rdma group and udev rules"
    if importlib.util.find_spec("pyverbs") is None:
        return "pyverbs is not installed: install python3-pyverbs"
    return ""


# The room of the bus needs nats-py, which other agents do not: only its name is known here.
_ON_BUS = "c4bench.bus.agent_windows"
_LOOK_S = 0.02


async def notify_systemd(serves: Callable[[], bool]) -> None:
    """Notify for the agent in this event loop; return at once if NOTIFY_SOCKET is unset."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        notifier.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        while not serves():
            await asyncio.sleep(_LOOK_S)
        notifier.send(b"READY=1")
        # Twice as often as it must, as sd_watchdog_enabled(3) advises.
        every_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
        while every_s:
            notifier.send(b"WATCHDOG=1")
            await asyncio.sleep(every_s)


def serve(config: AgentConfig, spawner: socket.socket) -> None:
    """Serve until SIGTERM."""
    trust = Path(config.trust)
    tls = client_context(trust / "ca.pem", trust / "cert.pem", trust / "key.pem")
    release_and_freeze()
    bus = _bus(config, tls) if config.bus else None
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(Agent(config, tls, spawner, bus), Path(config.socket)))
    _logger.info("agent of %s stopped with its ranks", config.name)


def _bus(config: AgentConfig, tls: ssl.SSLContext) -> WindowSender:
    """What sends windows to the bus. Raises UsageError where nats-py is not installed, or for a wrong address."""
    sender: WindowSender = importlib.import_module(_ON_BUS).of_agent(config, tls)
    return sender


async def _run(agent: Agent, socket: Path) -> None:
    task = asyncio.ensure_future(agent.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.TaskGroup() as tasks:
        notifying = tasks.create_task(notify_systemd(socket.exists))
        await task
        notifying.cancel()
