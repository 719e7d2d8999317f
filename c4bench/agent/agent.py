"""The agent's event loop: one connection to the master, one socket for its ranks, one line to the spawner."""

import asyncio
import contextlib
import importlib.util
import os
import socket
import ssl
import time
from functools import partial
from pathlib import Path

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

import c4bench
from c4bench.agent.ranks import Ranks
from c4bench.agent.spawner import Report, Spawn, Started
from c4bench.errors import UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.verbs.probe import probe_paths
from c4bench.wire.channel import ChannelClosed, StreamChannel, WebSocketChannel, frame
from c4bench.wire.messages import Empty, Hello, ProbeAnswer, ProbeRequest, Start, Stop
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import MASTER

_RECONNECT_S = 0.5
_RELAYED = ("exchange", "fail", "route", "release", "result", "word")  # what ranks ask of the master
_AWAITED = ("watch", "news")  # what they wait for as long as it takes


class Agent:
    """One host's agent."""

    def __init__(self, config: AgentConfig, tls: ssl.SSLContext, spawner: socket.socket) -> None:
        self._config = config
        self._tls = tls
        self._spawner = spawner
        self._ranks = Ranks(config)
        self._master: Peer | None = None
        self._starting: dict[tuple[str, int], asyncio.Future[int]] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        Path(self._config.state).mkdir(parents=True, exist_ok=True)
        Path(self._config.socket).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve_rank, self._config.socket)
        async with server, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_spawner())
            tasks.create_task(self._ship_windows())
            tasks.create_task(self._keep_connected())

    async def _keep_connected(self) -> None:
        uri = f"wss://{self._config.master}:{self._config.port}"
        while True:
            with contextlib.suppress(OSError, WebSocketException, TimeoutError, UnhealthyError):
                # Compression would make a message's size, and so its virtual time, depend on its content.
                async with connect(uri, ssl=self._tls, server_hostname=MASTER, compression=None) as connection:
                    await self._serve_master(Peer(WebSocketChannel(connection), self._handlers()))
            await asyncio.sleep(_RECONNECT_S)

    def _handlers(self) -> dict[str, Handler]:
        return {
            "start": Handler(Start, self._start),
            "stop": Handler(Stop, self._stop),
            "probe": Handler(ProbeRequest, self._probe),
        }

    async def _serve_master(self, master: Peer) -> None:
        serving = asyncio.create_task(master.serve())
        try:
            hello = Hello(self._config.name, c4bench.__version__, str(Path(c4bench.__file__).parent), rdma_problem())
            await master.call("hello", hello, Empty)
            self._master = master
            await serving
        finally:
            self._master = None
            serving.cancel()

    async def _start(self, request: Start) -> Empty:
        for rank in request.ranks:
            self._config.ring(request.job.id, rank).parent.mkdir(parents=True, exist_ok=True)
            log = str(Path(self._config.state) / f"{request.job.id}-{rank}.log")
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._starting[request.job.id, rank] = future
            await asyncio.get_running_loop().sock_sendall(
                self._spawner, frame(msgspec.msgpack.encode(Spawn(request.job, rank, log)))
            )
            await future
        return Empty()

    async def _stop(self, request: Stop) -> Empty:
        self._ranks.stop(request.job)
        return Empty()

    async def _probe(self, request: ProbeRequest) -> ProbeAnswer:
        nic = next((nic for nic in self._config.nics if nic.index == request.nic), None)
        if nic is None:
            raise UnhealthyError(f"{self._config.name} has no NIC {request.nic}")
        search = partial(
            probe_paths, nic, request.destination, request.source_ports, request.max_hops, request.timeout_s
        )
        return ProbeAnswer(await asyncio.to_thread(search))

    async def _follow_spawner(self) -> None:
        self._spawner.setblocking(False)
        reader, _ = await asyncio.open_connection(sock=self._spawner.dup())
        while True:
            length = int.from_bytes(await reader.readexactly(4))
            report = msgspec.msgpack.decode(await reader.readexactly(length), type=Report)
            if isinstance(report, Started):
                self._ranks.started(report)
                self._starting.pop((report.job, report.rank)).set_result(report.pid)
            else:
                self._ranks.exited(report)

    async def _ship_windows(self) -> None:
        last = time.time()
        while True:
            await asyncio.sleep(self._config.window_s)
            now = time.time()
            if self._master is not None and self._ranks.any:
                with contextlib.suppress(ChannelClosed):
                    await self._master.note("window", self._ranks.window(last, now))
            last = now

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers = {method: Handler(msgspec.Raw, partial(self._relay, method)) for method in _RELAYED}
        handlers |= {method: Handler(msgspec.Raw, partial(self._await, method)) for method in _AWAITED}
        await Peer(StreamChannel(reader, writer), handlers).serve()
        writer.close()

    async def _relay(self, method: str, body: msgspec.Raw) -> msgspec.Raw:
        if self._master is None:
            raise UnhealthyError(f"{method}: the agent has lost its master")
        return msgspec.Raw(await self._master.call_raw(method, bytes(body)))

    async def _await(self, method: str, body: msgspec.Raw) -> msgspec.Raw:
        """Ask again whenever the master comes back: losing it is no failure of the job's."""
        while True:
            with contextlib.suppress(UnhealthyError):
                return await self._relay(method, body)
            await asyncio.sleep(_RECONNECT_S)


def rdma_problem() -> str:
    """Why no RDMA device can be used here, "" when one can."""
    devices = Path("/dev/infiniband")
    if not any(devices.glob("uverbs*")):
        return "no RDMA device: nothing in /dev/infiniband"
    if not any(os.access(path, os.R_OK | os.W_OK) for path in devices.glob("uverbs*")):
        return f"no RDMA device may be opened by user {os.getuid()}: check the rdma group and udev rules"
    if importlib.util.find_spec("pyverbs") is None:
        return "pyverbs is not installed: install python3-pyverbs"
    return ""
