"""A master on this machine, started as a user would, and connections to it."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import urllib.request

from c4bench.model.agent import AgentConfig
from c4bench.wire.channel import master_channel
from c4bench.wire.messages import Empty, StartRanks, StopRanks
from c4bench.wire.peer import Handler, Peer
from c4bench.wire.trust import client_context


async def agree(_request):
    """The answer of a bare agent to every request."""
    return Empty()


class Scene:
    """`c4bench master` as a process, and agents in this one."""

    def __init__(self, trust, folder):
        self.trust, self.folder = trust, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.master = self.start()

    def start(self):
        words = ["master", f"--trust={self.trust}", f"--listen={self.address}", f"--state={self.folder / 'state'}"]
        command = [sys.executable, "-m", "c4bench.cli.main", *words, "--log-format=json"]
        self.master = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.master.stdout.readline()
        assert line.startswith("listening"), line + self.master.stderr.read()
        return self.master

    def kill(self):
        """Kill it; return its log."""
        self.master.send_signal(signal.SIGKILL)
        return self.logged()

    def stop(self):
        """End it as an operator does: its jobs would continue. Return its log."""
        self.master.send_signal(signal.SIGTERM)
        return self.logged()

    def logged(self):
        """The lines of its log, after it has ended."""
        return [json.loads(line) for line in self.master.communicate()[1].splitlines()]

    def config(self, name):
        """The configuration of a host's agent, as deployment would write it."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        for target, source in (("ca.pem", "ca.pem"), ("cert.pem", f"{name}.pem"), ("key.pem", f"{name}.key")):
            (home / target).write_bytes((self.trust / source).read_bytes())
        return AgentConfig(name, "127.0.0.1", str(home), (), self.port, 0.1, str(home), str(home / "rings"))

    def tls(self, name, trust=None):
        place = trust or self.trust
        return client_context(self.trust / "ca.pem", place / f"{name}.pem", place / f"{name}.key")

    @contextlib.asynccontextmanager
    async def agent(self, name):
        """A bare connection to the master with a host's certificate."""
        async with master_channel(self.address, self.tls(name)) as channel:
            peer = Peer(channel, {"start": Handler(StartRanks, agree), "stop": Handler(StopRanks, agree)})
            serving = asyncio.create_task(peer.serve())
            yield peer
            serving.cancel()

    def page(self, path, name="observer"):
        tls = self.tls(name)
        tls.check_hostname = False
        with urllib.request.urlopen(f"https://{self.address}{path}", context=tls, timeout=10) as answer:
            return answer.read().decode()

    def health(self):
        return json.loads(self.page("/health"))
