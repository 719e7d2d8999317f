"""Programs that run on hosts: one command on each of some hosts, a server and its client, or a launcher with its ranks.

All that a program starts has a mark in its environment, by which it is ended on every host, whatever has become of it.
"""

import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import msgspec

from c4bench.attach import host_runner
from c4bench.decoding import DecodingError, from_json
from c4bench.errors import C4Error, UnhealthyError
from c4bench.evidence.printed import Figure, figures
from c4bench.foreign_text import one_line
from c4bench.inventory import Access
from c4bench.remote import BARE_PYTHON, Connection, Session, connect

MARK = "C4BENCH_PROGRAM"
Reach = Callable[[str, Access], Connection]
_ANSWER_S = 60.0
_POLL_S = 0.02
_SERVER_S = 2.0
_OUTPUT_BYTES_AT_MOST = 8 << 20
_AT_ONCE = 32
_RUNNER = Path(host_runner.__file__)


class Start(msgspec.Struct, frozen=True):
    """A command to start on a host, which `access` reaches, with what is added to its environment there."""

    host: str
    access: Access
    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}


class _Answer(msgspec.Struct, frozen=True):
    error: str = ""
    pid: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    code: int = -1
    text: str = ""
    listens: bool = False
    pids: tuple[int, ...] = ()


class Process:
    """One command on one host; times are of that host's clock.

    `printed` is what has been read of its output; it is `lost` once its runner there does not answer.
    """

    def __init__(self, start: Start, mark: str, reach: Reach = connect) -> None:
        """Start it. Raises UnhealthyError where it cannot be started."""
        self.host, self.argv = start.host, start.argv
        request = {"name": MARK, "mark": mark, "argv": start.argv, "environment": start.environment}
        self._session: Session | None = _runner(start.host, start.access, request, reach)
        self.printed = b""
        self.lost = False
        self.code: int | None = None
        self.ended_s = math.nan
        try:
            answer = self._read(_ANSWER_S)
        except C4Error:
            self.close()
            raise
        self.pid, self.began_s = answer.pid, answer.began_s

    def wait(self, timeout_s: float) -> int | None:
        """The exit status (128 and more for a signal, as in a shell), or None if it still runs after `timeout_s`."""
        if self.code is None and self._session:
            answer = self._ask("wait", timeout_s, timeout_s + _ANSWER_S)
            if answer.code >= 0:
                self.code, self.ended_s = answer.code, answer.ended_s
        return self.code

    def listens(self) -> bool:
        """Whether it, or what it has started there, waits for TCP connections."""
        return self._ask("listens", 0, _ANSWER_S).listens

    def signal(self, number: int) -> None:
        """Send a signal to the command itself, if it still runs."""
        self._ask("signal", number, _ANSWER_S)

    def output(self) -> str:
        """What it has printed so far, stdout and stderr; of more than 8 MiB the beginning."""
        while self._session and len(self.printed) < _OUTPUT_BYTES_AT_MOST:
            chunk = self._ask("output", len(self.printed), _ANSWER_S).text
            if not chunk:
                break
            self.printed += chunk.encode("latin-1")
        return self.printed.decode(errors="replace")

    def close(self) -> None:
        """End it and what it has left on its host; its output, as read before, and its exit status stay."""
        if self._session:
            self._session.close()
            self._session = None

    def _ask(self, question: str, argument: float, timeout_s: float) -> _Answer:
        if self._session is None:
            return _Answer()
        self._session.write_line(msgspec.json.encode({"ask": question, "with": argument}).decode())
        return self._read(timeout_s)

    def _read(self, timeout_s: float) -> _Answer:
        assert self._session is not None
        try:
            return _answer(self.host, self._session, timeout_s)
        except C4Error:
            self.lost = True
            raise


class Program:
    """Processes that belong together: those of each host in the order of ranks, or a launcher's one process.

    `job` is its name to c4bench, `hosts` are all on which it may have processes, and `printing` is the index of the
    process that prints its figures.
    """

    def __init__(
        self, job: str, starts: Sequence[Start], hosts: Mapping[str, Access], *, reach: Reach = connect
    ) -> None:
        """Start nothing yet; `starts` are started by `start`, in order."""
        self.job = job
        self.starts, self._hosts, self._reach = starts, hosts, reach
        self.mark = os.urandom(8).hex()
        self.processes: list[Process] = []
        self.printing = 0
        self._servers = 0  # how many of the first processes end by themselves only if they like

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the processes that have not been started. Raises UnhealthyError."""
        for start in self.starts[len(self.processes) :]:
            self.processes.append(Process(start, self.mark, self._reach))

    def start_server(self, within_s: float, ready_s: float | None) -> None:
        """Start the first process, and return once it listens, or after `ready_s` where that is given.

        Raises UnhealthyError if it ends before, or does not listen `within_s`.
        """
        server = Process(self.starts[0], self.mark, self._reach)
        self.processes.append(server)
        self._servers = self.printing = 1
        if ready_s is not None:
            time.sleep(ready_s)
            return
        deadline_s = time.monotonic() + within_s
        while not server.listens():
            if server.wait(0.0) is not None:
                raise self._failure(server, f"ended (code {server.code}) before it listened")
            if time.monotonic() > deadline_s:
                raise self._failure(server, f"does not listen after {within_s:g} s; give ready_s if it never does")
            time.sleep(_POLL_S)

    def poll(self) -> int | None:
        """The exit status if all processes have ended, but for a server, None while one runs."""
        codes = [process.wait(0.0) for process in self.processes[self._servers :]]
        return None if None in codes else next((code for code in codes if code), 0)

    def wait(self, timeout_s: float, *, check: bool = True) -> int:
        """Wait for the end of all processes; the exit status is the first that is not 0.

        A server that goes on serving 2 s after its client has ended is ended by SIGTERM. Raises UnhealthyError with the
        last line of output if another process still runs after `timeout_s`, and with `check` if one has failed.
        """
        deadline_s = time.monotonic() + timeout_s
        for process in self.processes[self._servers :]:
            if process.wait(max(0.0, deadline_s - time.monotonic())) is None:
                raise self._failure(process, f"did not end within {timeout_s:g} s")
        stopped = self._stopped_servers()
        for process in self.processes:
            if process.code and process not in stopped:
                if check:
                    raise self._failure(process, f"failed with code {process.code}")
                return process.code
        return 0

    def _stopped_servers(self) -> list[Process]:
        stopped = [server for server in self.processes[: self._servers] if server.wait(_SERVER_S) is None]
        for server in stopped:
            server.signal(signal.SIGTERM)
        return stopped

    def signal(self, number: int = signal.SIGTERM, *, program: str = "", host: str = "") -> tuple[int, ...]:
        """Send a signal to the processes of that host (or of all hosts) that run a file of the name `program`.

        Without `program`, the commands themselves get it. Returns the numbers of the processes found by name.
        """
        if not program:
            for process in self.processes:
                if host in {"", process.host}:
                    process.signal(number)
            return ()
        return self._act([host] if host else self._hosts, {"of": program, "signal": number})

    @property
    def duration_s(self) -> float:
        """How long the longest process ran on its host's clock, of a client and its server the client; NaN before."""
        lasted_s = [process.ended_s - process.began_s for process in self.processes[self._servers :]]
        return max(lasted_s) if lasted_s and not any(map(math.isnan, lasted_s)) else math.nan

    @property
    def output(self) -> str:
        """What the process that prints the figures has printed so far."""
        return self.processes[self.printing].output()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures in its output so far, as `evidence.printed` reads them."""
        return figures(self.output)

    @property
    def figure(self) -> Figure:
        """The last figure: of the largest size, or the newest. Raises UnhealthyError where there is none."""
        found = self.figures
        if not found:
            raise self._failure(self.processes[self.printing], "printed no figure")
        return found[-1]

    def close(self) -> None:
        """End it on all hosts, if it has not ended. Raises UnhealthyError for a host where that was not possible."""
        problems = [problem for process in self.processes if (problem := _try(process.close))]
        ended = {process.host for process in self.processes if not process.lost}
        elsewhere = [host for host in self._hosts if host not in ended]
        if self.processes and elsewhere:
            problem = _try(lambda: self._act(elsewhere, {}))
            problems += [problem] if problem else []
        if problems:
            raise UnhealthyError(f"not ended everywhere: {'; '.join(problems)}; look for {MARK}={self.mark} there")

    def _act(self, hosts: Iterable[str], request: Mapping[str, object]) -> tuple[int, ...]:
        """Have a request carried out on hosts; returns the numbers of the processes concerned."""

        def one(host: str) -> tuple[int, ...]:
            named = {"name": MARK, "mark": self.mark, **request}
            session = _runner(host, self._hosts[host], named, self._reach)
            try:
                return _answer(host, session, _ANSWER_S).pids
            finally:
                session.close()

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return tuple(pid for pids in pool.map(one, hosts) for pid in pids)

    def _failure(self, process: Process, what: str) -> UnhealthyError:
        lines = process.output().strip().splitlines()
        last = one_line(lines[-1].strip()) if lines else "it has printed nothing"
        return UnhealthyError(f"{process.host}: `{one_line(shlex.join(process.argv), 80)}` {what}: {last}")


def _runner(host: str, access: Access, request: Mapping[str, Any], reach: Reach) -> Session:
    words = [*BARE_PYTHON, _RUNNER.read_text(), msgspec.json.encode(request).decode()]
    return reach(host, access).start(words)


def _answer(host: str, session: Session, timeout_s: float) -> _Answer:
    line = session.read_line(timeout_s)
    try:
        answer = from_json(line, _Answer)
    except DecodingError as error:
        raise UnhealthyError(f"{host}: its runner sent {one_line(line, 80)}: {error}") from None
    if answer.error:
        raise UnhealthyError(f"{host}: {one_line(answer.error)}")
    return answer


def _try(act: Callable[[], object]) -> str:
    try:
        act()
    except C4Error as error:
        return str(error)
    return ""
