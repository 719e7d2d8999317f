"""A job of two ranks in this process, to be traced: a real master, real agents, ranks over the loopback transport.

Only what needs a device or a process is stood for: agents start ranks as threads, NICs are loopback ports, and agents
answer probes as a fabric with two spines would.
"""

import asyncio
import datetime
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from c4bench.agent.agent import Agent
from c4bench.agent.spawner import Started
from c4bench.collective.options import Options
from c4bench.control.cluster import Cluster
from c4bench.deploy import authority
from c4bench.errors import C4Error, UnhealthyError
from c4bench.model.agent import AgentConfig
from c4bench.model.fabric import HopAnswer, Host, Nic
from c4bench.model.telemetry import Member
from c4bench.wire.framing import LENGTH_BYTES, frame
from c4bench.wire.messages import JobSpec
from c4bench.wire.probes import ProbeAnswer
from c4bench.wire.trust import client_context
from c4bench.workload.context import RankContext
from tools.loopback import LoopbackPort, Network

SPINES = 2
HOSTS = tuple(Host(f"h{n}", "", (Nic(f"h{n}", 0, "rxe0", "net", f"10.0.{n}.1", 1e10),)) for n in range(2))
WITHIN_S = 60.0
# Only the operation that is never finished has this size.
SIZE_BYTES = 12_344
HEALTHY, EVERY_S = 6, 0.4
JOB, COMMUNICATOR = "walk", "ring"


class ProbedAgent(Agent):
    """An agent whose probes are answered here: which of two spines a packet takes follows from its source port."""

    async def _probe(self, request):
        return ProbeAnswer(tuple(self._answer(probe) for probe in request.probes))

    def _answer(self, probe):
        spine = f"172.16.{probe.source_port % SPINES}"
        path = (f"{spine}.254", f"{spine}.1", f"{spine}.2", probe.destination)
        return HopAnswer(path[min(probe.ttl, len(path)) - 1], 61)


class TracedJob:
    """The master, the agents and the ranks; a context manager.

    While it is `warming`, the job runs as ever: what is traced comes before or after.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.network = Network()
        self.stack = ExitStack()
        self.errors = []
        self.go_on = threading.Event()
        self.warming = False

    def __enter__(self):
        authority.establish(
            self.folder, [host.name for host in HOSTS], datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.cluster = self.stack.enter_context(Cluster(HOSTS, self.folder, "127.0.0.1", self.port))
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        for host in HOSTS:
            self._start_agent(host)
        self.cluster.wait_hosts([host.name for host in HOSTS], WITHIN_S)
        self.cluster.plan_paths()
        return self

    def __exit__(self, *error):
        self.go_on.set()
        self.stack.close()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _start_agent(self, host):
        home = self.folder / host.name
        home.mkdir()
        paths = [self.folder / name for name in ("ca.pem", f"{host.name}.pem", f"{host.name}.key")]
        config = AgentConfig(
            host.name, "127.0.0.1", str(home), host.nics, self.port, state=str(home), rings=str(home / "rings")
        )
        ours, theirs = socket.socketpair()
        self.stack.callback(ours.close)
        self.stack.callback(theirs.shutdown, socket.SHUT_RDWR)
        running = asyncio.run_coroutine_threadsafe(ProbedAgent(config, client_context(*paths), ours).run(), self.loop)
        self.stack.callback(running.cancel)
        threading.Thread(target=self._spawn, args=(theirs, config), daemon=True).start()

    def _spawn(self, requests, config):
        """Start ranks as threads where the agent asks for processes."""
        with requests, suppress(OSError):
            while length := int.from_bytes(requests.recv(LENGTH_BYTES, socket.MSG_WAITALL)):
                asked = msgspec.msgpack.decode(requests.recv(length, socket.MSG_WAITALL))
                spec, rank = msgspec.convert(asked["job"], JobSpec), asked["rank"]
                requests.sendall(frame(msgspec.msgpack.encode(Started(spec.id, rank, os.getpid()))))
                threading.Thread(target=self._run_rank, args=(spec, rank, config), daemon=True).start()

    def _run_rank(self, spec, rank, config):
        """All-reduces of all ranks, then one of another size that the last rank does not enter."""
        try:
            context = RankContext(spec, rank, config)
            context._process = replace(context._process, open_port=lambda nic: LoopbackPort(self.network, nic.device))
            comm = context.communicator(COMMUNICATOR, Options(paths="planned", qps=2, timeout_s=WITHIN_S))
            array = comm.empty(4096, "float32")
            self.warming = True
            for _ in range(HEALTHY):
                comm.all_reduce(array)
                time.sleep(EVERY_S)
            if rank == len(spec.members) - 1:
                self.go_on.wait(WITHIN_S)
            else:
                self.warming = False
                comm.all_reduce(array[: SIZE_BYTES // array.itemsize])
        except C4Error as error:
            self.errors.append(error)

    def run(self):
        """Run the job until its hang has been named, and return the diagnosis."""
        members = tuple(Member(n, host.name, tuple(nic.name for nic in host.nics)) for n, host in enumerate(HOSTS))
        nics = tuple(nic for host in HOSTS for nic in host.nics)
        job = self.cluster.start(JobSpec(JOB, "steady", members, nics))
        found = self.cluster.wait_diagnosis(job.spec.id, WITHIN_S)
        if found is None or all(side.size_bytes != SIZE_BYTES for side in found.operations):
            raise UnhealthyError(f"the hang was not named first within {WITHIN_S:g} s: {found}; {self.errors}")
        return found
