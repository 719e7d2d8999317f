"""Pairs of programs that we did not write, one on each of two hosts, under the preloaded libraries."""

import json
import os
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from c4bench import remote
from c4bench.attach import build, records
from c4bench.attach.records import QueuePair
from c4bench.lab.spec import CONTROL_SOCKET

START_S, LIMIT_S = 0.5, 20.0  # until a server listens; the longest that a pair of programs may take
PACKAGES = {"ib": "perftest", "ibv": "ibverbs-utils"}


class Ran(NamedTuple):
    """What server and client printed, and the queue pairs that each process recorded."""

    server: str
    client: str
    queue_pairs: list[tuple[QueuePair, ...]]


class Programs:
    """Runs the two ends of a program on two NICs; `questions` are those that their libraries asked the agent."""

    def __init__(self, connections, ends, folder):
        self._connections, self._ends, self._folder = connections, ends, folder
        self.questions = []

    @contextmanager
    def agent(self, answer):
        """While the block runs, an agent of the test's own answers each question so; None: it never answers."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._folder / "agent"))
        listener.listen()
        thread = threading.Thread(target=self._serve, args=(listener, answer))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            listener.close()
            (self._folder / "agent").unlink()

    def _serve(self, listener, answer):
        with suppress(OSError), ThreadPoolExecutor(8) as pool:
            while True:
                pool.submit(self._converse, listener.accept()[0], answer)

    def _converse(self, connection, answer):
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                asked = json.loads(line)
                if "qp" in asked:
                    self.questions.append(asked)
                if answer is not None:
                    lines.write(json.dumps(answer if "qp" in asked else {}) + "\n")
                    lines.flush()

    def __call__(self, *words):
        """Run `words` at both ends, the client's with the server's address; raises UnhealthyError if an end fails."""
        kept, over = {}, threading.Event()
        with ThreadPoolExecutor(3) as pool:
            keeping = pool.submit(self._keep, kept, over)
            server, client = (pool.submit(self._run, end, words) for end in (0, 1))
            try:
                said = [end.result() for end in (server, client)]
            finally:
                over.set()
                keeping.result()
        return Ran(*said, [records.read_queue_pairs(path, descriptor) for path, descriptor in sorted(kept.items())])

    def _run(self, end, words):
        preload = ":".join(map(str, build.libraries()))
        folder = self._folder / str(end)
        own = [
            f"LD_PRELOAD={preload}",
            f"C4BENCH_ATTACH_RECORDS={folder}",
            f"C4BENCH_ATTACH_SOCKET={self._folder}/agent",
        ]
        argv = [*words, "-d", self._ends[end].nic.device, *([self._ends[0].host.address] if end else [])]
        wait = ["sleep", str(START_S)] if end else ["true"]
        shell = ["sh", "-c", '"$1" $2; shift 2; exec "$@" 2>&1', "sh", wait[0], wait[-1] if end else ""]
        done = self._connections[end].run([*shell, "env", *own, *argv], timeout_s=LIMIT_S)
        return done.stdout.decode()

    def _keep(self, kept, over):
        """Open the queue pairs of each process while it lives: its files go with it."""
        while not over.wait(0.005):
            for path in self._folder.glob("*/*.qps"):
                if path not in kept:
                    with suppress(FileNotFoundError):
                        kept[path] = os.open(path, os.O_RDONLY)


class End(NamedTuple):
    """A host with one of its NICs."""

    host: object
    nic: object


@pytest.fixture
def programs(inventory, hosts, shared):
    """Runs programs on two hosts that are as far apart as any."""
    if not Path(CONTROL_SOCKET).exists():
        pytest.skip("unsupported: these hosts are not a lab's; c4bench attach runs programs on others")
    ends = [End(host, host.nics[0]) for host in (hosts[0], hosts[-1])]
    for folder in (shared, shared / "0", shared / "1"):
        folder.mkdir()
    with ExitStack() as stack:
        names = [end.host.name for end in ends]
        connections = [stack.enter_context(remote.connect(name, inventory.access[name])) for name in names]
        yield Programs(connections, ends, shared)
    shutil.rmtree(shared)


@pytest.fixture
def installed():
    """Skip where a program is not installed, with the package that has it."""

    def check(program):
        if not shutil.which(program):
            pytest.skip(f"no-{program}: install {PACKAGES[program.partition('_')[0]]}")
        return program

    return check
