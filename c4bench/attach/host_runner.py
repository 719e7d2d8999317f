"""Runs a command on a host for a client elsewhere. It is sent there as text, so it needs Python 3.8 and no c4bench.

It starts the command in a session of its own, with output to a file that has no name, and answers one line of JSON for
each line of JSON. When its input ends, the client has gone: the command and all that it has started are ended. They are
found by the mark in their environment, which their children inherit, whatever sessions and parents they have by then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

_TERM_S = 2.0
_ROUNDS = 20
_CHUNK_BYTES = 65536
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


def main(request: dict[str, object]) -> None:
    """Run the request's `argv` with its `environment` added. Without one, act on what has its `mark`.

    Without `argv`, `signal` goes to the processes that run a program of the name `of`; without that, all are ended.
    """
    name, value = str(request["name"]), str(request["mark"])
    mark = f"{name}={value}".encode()
    argv, added = request.get("argv"), request.get("environment")
    if isinstance(argv, list):
        with tempfile.TemporaryFile() as output:
            environment = dict(os.environ, **(added if isinstance(added, dict) else {}))
            environment[name] = value
            command = Command(argv, environment, mark, output)
            try:
                command.serve()
            finally:
                command.end()
    elif request.get("of"):
        send({"pids": signal_marked(mark, int(str(request["signal"])), str(request["of"]))})
    else:
        send({"pids": end_marked(mark)})


class Command:
    """The running command; `ended_s` is when it ended on this host's clock, 0 before."""

    def __init__(self, argv: list[str], environment: dict[str, str], mark: bytes, output: IO[bytes]) -> None:
        """Start it. Raises OSError where it cannot be started."""
        self._mark, self._output = mark, output
        self._woken, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.began_s, self.ended_s = time.time(), 0.0
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def serve(self) -> None:
        """Answer until the input ends."""
        send({"pid": self._process.pid, "began_s": self.began_s})
        while self._wait_for_input(None):
            line = sys.stdin.readline()
            if not line:
                return
            send(self._answer(json.loads(line)))

    def _answer(self, question: dict[str, object]) -> dict[str, object]:
        """`ask` is `wait`, `output`, `listens` or `signal`; `with` its argument."""
        ask, argument = question["ask"], question["with"]
        if ask == "wait":
            self._wait_for_end(float(str(argument)))
            return self._state()
        if ask == "output":
            # Bytes of the output, each as the character of its number.
            return {"text": os.pread(self._output.fileno(), _CHUNK_BYTES, int(str(argument))).decode("latin-1")}
        if ask == "listens":
            return {"listens": listens(self._mark)}
        self._signal(int(str(argument)))
        return {}

    def _state(self) -> dict[str, object]:
        """The exit status, 128 and more for a signal as in a shell; nothing while the command runs."""
        if not self.ended_s:
            return {}
        code = self._process.returncode
        return {"code": code if code >= 0 else 128 - code, "ended_s": self.ended_s}

    def _wait_for_end(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while not self.ended_s:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self._wait_for_input(left_s):  # a client that does not wait for its answer has gone
                return

    def _wait_for_input(self, seconds: float | None) -> bool:
        """Wait for a line or the end of the input, and note the end of the command.

        False where the command has ended first, or nothing has come in time; never without a time.
        """
        while True:
            ready = select.select([sys.stdin, self._woken], [], [], seconds)[0]
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, _CHUNK_BYTES)
                if not self.ended_s and self._process.poll() is not None:
                    self.ended_s = time.time()
            if sys.stdin in ready:
                return True
            if seconds is not None:
                return False

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """End the command, first by SIGTERM, so that a launcher ends its ranks, then all that it has left."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_TERM_S)
        end_marked(self._mark)


def marked(mark: bytes) -> list[int]:
    """The processes that run and whose environment has the mark, but for this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):  # it has ended, or is another user's
                if mark in (folder / "environ").read_bytes().split(b"\0") and runs(folder):
                    found.append(int(folder.name))
    return found


def runs(folder: Path) -> bool:
    """Whether a process is no zombie, by its folder in /proc."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in {"Z", "X"}


def end_marked(mark: bytes) -> list[int]:
    """Kill the processes that have the mark, until there are none; returns their numbers."""
    ended: list[int] = []
    for _ in range(_ROUNDS):
        pids = marked(mark)
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended += [pid for pid in pids if pid not in ended]
        if not pids:
            break
        time.sleep(0.01)
    return ended


def signal_marked(mark: bytes, number: int, program: str) -> list[int]:
    """Send a signal to the processes that have the mark and run a file of that name; returns their numbers."""
    pids = [pid for pid in marked(mark) if program_of(pid) == program]
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)
    return pids


def program_of(pid: int) -> str:
    """The name of the file that a process runs; "" where that cannot be seen."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").resolve().name
    return ""


def listens(mark: bytes) -> bool:
    """Whether a process that has the mark waits for TCP connections."""
    waiting = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            waiting |= {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENING}
    return any(waiting & descriptors(pid) for pid in marked(mark))


def descriptors(pid: int) -> set[str]:
    """What the open descriptors of a process refer to."""
    found = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(entry))  # noqa: PTH115  (Path.readlink is newer than Python 3.8)
    return found


def send(answer: dict[str, object]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        send({"error": str(error)})
