"""A bus on this machine: nats-server, masters and detectors as users start them, and agents of simulated jobs."""

import asyncio
import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import c4bench
from c4bench.bus.agent_windows import BusWindows
from c4bench.bus.connection import Bus, bus_tls, opened
from c4bench.bus.detector import JOB
from c4bench.bus.lease import Lease
from c4bench.bus.subjects import Subjects
from c4bench.control.client import dial
from c4bench.deploy import authority
from c4bench.errors import UnhealthyError
from c4bench.model.event import Diagnosed
from c4bench.model.fabric import Nic
from c4bench.model.step import StepOp
from c4bench.wire.channel import master_channel
from c4bench.wire.messages import Empty, Hello, JobSpec, StartRanks, StopRanks
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import Role, client_context
from tools.sim.job import simulate
from tools.sim.model import SimJob

HOSTS = ("h0", "h1", "h2", "h3")
SUBJECTS = Subjects("c4")
_RATE_BPS = 10e9
_WINDOW_S = 0.1

needs_nats = pytest.mark.skipif(
    shutil.which("nats-server", path=f"{os.environ['PATH']}:/usr/sbin") is None,
    reason="nats-server is not installed: apt-get install --no-install-recommends nats-server",
)


def free_port():
    """A port of the loopback that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def c4(*words):
    """The command of c4bench with these words."""
    return [sys.executable, "-m", "c4bench.cli.main", *words]


class Process:
    """A program whose log is in a file."""

    def __init__(self, command, log, ready=""):
        self.log = log
        with log.open("a") as sink:
            self.started = subprocess.Popen(command, stdout=sink, stderr=sink)
        while not any(line.startswith(ready) for line in log.read_text().splitlines() or [""]):
            assert self.started.poll() is None, log.read_text()
            time.sleep(0.02)

    @property
    def pid(self):
        return self.started.pid

    def send(self, number):
        self.started.send_signal(number)

    def end(self, number=signal.SIGTERM):
        """End it; return its exit code."""
        if self.started.poll() is None:
            self.started.send_signal(number)
            self.started.send_signal(signal.SIGCONT)
        return self.started.wait(20)


class BusScene:
    """The processes are ended with the context."""

    def __init__(self, folder):
        self.folder, self.trust = folder, folder / "trust"
        authority.establish(self.trust, HOSTS, datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
        self.bus_port, self.port = free_port(), free_port()
        self.bus_address, self.address = f"nats://127.0.0.1:{self.bus_port}", f"127.0.0.1:{self.port}"
        self._count = 0
        self._running = []
        words = ["bus", "config", f"--trust={self.trust}", f"--store={folder / 'store'}"]
        words.append(f"--listen=127.0.0.1:{self.bus_port}")
        configured = subprocess.run(c4(*words), capture_output=True, text=True, check=True)
        (folder / "nats.json").write_text(configured.stdout)
        self.server = self.start_server()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.end(signal.SIGKILL)

    def _run(self, what, command, ready=""):
        self._count += 1
        process = Process(command, self.folder / f"{what}-{self._count}.log", ready)
        self._running.append(process)
        return process

    def start_server(self):
        """nats-server, with the configuration that c4bench has written."""
        path = shutil.which("nats-server") or "/usr/sbin/nats-server"
        self.server = self._run("nats", [path, "--config", str(self.folder / "nats.json")])
        deadline_s = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.bus_port), 1):
                return self.server
            assert time.monotonic() < deadline_s, self.server.log.read_text()
            time.sleep(0.05)

    def start_master(self, *, waits=False, port=None):
        """A master on the bus; unless it `waits`, it listens when this returns."""
        state = self.folder / f"state-{self._count}"
        words = ["master", f"--bus={self.bus_address}", f"--trust={self.trust}", f"--state={state}"]
        words.append(f"--listen=127.0.0.1:{port or self.port}")
        return self._run("master", c4(*words), "" if waits else "listening")

    def start_detector(self):
        """A detector, connected."""
        return self._run("detector", c4("detector", f"--bus={self.bus_address}", f"--trust={self.trust}"), "connected")

    def bus(self, role=Role.BUS_MASTER):
        """A connection to the bus, to be opened."""
        return Bus(self.bus_address, bus_tls(self.trust, role), str(role), SUBJECTS, role)

    def health(self, port=None):
        """A master's health page."""
        tls = self.tls("observer")
        tls.check_hostname = False
        with urllib.request.urlopen(f"https://127.0.0.1:{port or self.port}/health", context=tls, timeout=10) as page:
            return json.loads(page.read())

    async def judging(self, jobs, bus=None):
        """Wait until all these jobs are judged; return who judges which. Without a `bus` it opens one."""
        if bus is None:
            async with opened(self.bus()) as own:
                return await self.judging(jobs, own)
        while True:
            leases = await asyncio.gather(*(Lease(bus, f"{JOB}{job}").look() for job in jobs))
            holders = {job: held.holder for job, held in zip(jobs, leases, strict=True) if held and held.judged_s}
            if len(holders) == len(jobs) and all(holders.values()):
                return holders
            await asyncio.sleep(0.1)

    def tls(self, name):
        return client_context(self.trust / "ca.pem", self.trust / f"{name}.pem", self.trust / f"{name}.key")

    async def diagnoses(self, first=0):
        """The diagnoses that the master publishes, from its event number `first` on, without end."""
        while True:
            with contextlib.suppress(UnhealthyError):
                async with dial(self.address, self.trust, Role.OBSERVER) as master:
                    async for event in master.follow(first):
                        first += 1
                        if isinstance(event, Diagnosed):
                            yield event.diagnosis
            await asyncio.sleep(0.1)


class SimulatedJobs:
    """Jobs of four ranks, one a host; `faults` has those of each job. Their times begin when `run` does."""

    def __init__(self, scene, faults):
        self.scene, self.faults = scene, faults
        self.specs = {name: self._spec(name) for name in faults}
        self.began_s = 0.0

    def _job(self, name):
        return SimJob(len(HOSTS), (StepOp("all_reduce", 4 << 20, 0.02),), name, rate_bps=_RATE_BPS, window_s=_WINDOW_S)

    def _spec(self, name):
        first = next(simulate(self._job(name), duration_s=0.2)).windows[0]
        members = first.comms[0].members
        nics = tuple(Nic(one.host, 0, "", "", "", _RATE_BPS) for one in members)
        return JobSpec(name, "pulse", members, nics)

    async def run(self):
        """Send all windows at their times, until cancelled; agents introduce themselves to the master that there is."""
        self.began_s = time.time() + 1.0
        async with asyncio.TaskGroup() as tasks:
            for host in HOSTS:
                tasks.create_task(self._introduce(host))
            for name in self.faults:
                tasks.create_task(self._send(name))

    async def _introduce(self, host):
        """An agent whose ranks run already."""
        ranks = (HOSTS.index(host),)
        hello = Hello(host, c4bench.__version__, "", "", tuple(StartRanks(spec, ranks) for spec in self.specs.values()))
        while True:
            with contextlib.suppress(Exception):
                async with master_channel(self.scene.address, self.scene.tls(host)) as channel:
                    peer = Peer(channel, {"stop": Handler(StopRanks, _agree)})
                    serving = asyncio.create_task(peer.serve())
                    await peer.call("hello", hello, Empty)
                    await serving
            await asyncio.sleep(0.1)

    async def _send(self, name):
        agents = {}
        for host in HOSTS:
            agents[host] = BusWindows(Bus(self.scene.bus_address, self.scene.tls(host), host, SUBJECTS))
        sending = [asyncio.create_task(agent.run()) for agent in agents.values()]
        try:
            for tick in simulate(self._job(name), self.faults[name], 1e6):
                await asyncio.sleep(max(0.0, self.began_s + tick.time_s - time.time()))
                for window in tick.windows:
                    agents[window.host].put(window)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.wait(sending)


async def _agree(_):
    return Empty()
