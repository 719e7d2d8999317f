"""A process that c4bench has not started, which records a queue pair and speaks to the agent as our library does."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from c4bench.collective.recorder import Recorder
from c4bench.collective.ring_layout import ConnName
from c4bench.model.telemetry import CommRecord

MESSAGE_BYTES = 1 << 20
NOWHERE = CommRecord("verbs", "", ())


class Foreign:
    """A running process; it does what it is asked to, and answers when it has."""

    def __init__(self, process):
        self.process, self.pid = process, process.pid

    def ask(self, *words):
        """Have it do something; return its answer."""
        print(*words, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self, *words):
        """Have it exit with a code, or end it by a signal."""
        if words:
            self.ask("exit", *words)
        else:
            self.process.kill()
        return self.process.wait()


@contextmanager
def foreign(agent, source, destination, **variables):
    """A process on this agent's host, with a queue pair 17 from `source` to `destination` and one back."""
    command = [sys.executable, __file__, agent.attach_socket, agent.attach_records, source, destination]
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield Foreign(process)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class _Program:
    def __init__(self, path, records, source, destination):
        self._path, self._connection = path, None
        self.ring = Path(records) / f"{os.getpid()}.ring"
        self._recorder = Recorder(self.ring, "", -1)
        index = self._recorder.communicator(NOWHERE, -1)
        now_ns = time.time_ns()
        self._sending = self._recorder.connection(ConnName(index, -1, source, destination, 17), 50_001, now_ns)
        self._arriving = self._recorder.arrivals(ConnName(index, -1, destination, source, 17))
        self._question = {"source": source, "destination": destination, "qp": 17, "remote_qp": 17}

    def connect(self):
        """Introduce itself; returns the answer."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(self._path)
        return self._say({"ring": self.ring.name, "environment": dict(os.environ)})

    def path(self):
        return self._say(self._question)

    def work(self, messages):
        """Carry these messages, each in a millisecond, both ways."""
        now_ns = time.time_ns()
        for _ in range(int(messages)):
            self._sending.post(now_ns)
            self._sending.set_state("transfer", 1, 0, now_ns)
            now_ns += 1_000_000
            self._sending.acknowledge(MESSAGE_BYTES, now_ns)
            self._sending.set_state("idle", 0, 0, now_ns)
            self._arriving.arrived(now_ns)
        self._arriving.store()
        return {}

    def exit(self, code):
        self.ring.unlink()
        _answer({})
        sys.exit(int(code))

    def _say(self, line):
        self._connection.sendall(json.dumps(line).encode()[:15_000] + b"\n")
        return json.loads(self._connection.makefile().readline() or '{"error": "closed"}')


def _answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(*words):
    """Do what comes on standard input."""
    program = _Program(*words)
    for line in sys.stdin:
        name, *arguments = line.split()
        _answer(getattr(program, name)(*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
