"""A process that outlives the command that started it, and can be found and ended again.

What counts is a lock on the pid file, not the number in it: the lock is shared by everything forked from the daemon.
While it is held part of the daemon lives, once it is free nothing does; and a pid file left by a crash is harmless.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from c4bench.errors import UnhealthyError

_POLL_S = 0.02


class Daemon:
    """A daemon known by `directory`, which holds its pid file and its log."""

    def __init__(self, directory: Path) -> None:
        self._pid_file = directory / "agent.pid"
        self._log = directory / "agent.log"

    def start(self, main: Callable[[], int], ready: Callable[[], bool], timeout_s: float) -> None:
        """Run `main` in the background and return once `ready()` holds; the background process never returns from here.

        Raises UnhealthyError when one runs already, or when it ends or is not ready within `timeout_s`.
        """
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._pid_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _try_lock(lock):
            os.close(lock)
            raise UnhealthyError(f"an agent runs here already (process {self._pid()}); end it with --stop first")
        middle = os.fork()
        if middle == 0:
            os.setsid()
            # The second fork gives up the session's leadership: no terminal can become ours again.
            if os.fork():
                os._exit(0)
            self._become(lock, main)
        os.close(lock)
        os.waitpid(middle, 0)
        _wait(lambda: ready() or not self.running, timeout_s)
        if not self.running:
            raise UnhealthyError(f"the agent ended at once: {self._last_words()} (log: {self._log})")
        if not ready():
            raise UnhealthyError(f"the agent is not ready after {timeout_s:g} s (log: {self._log})")

    def _become(self, lock: int, main: Callable[[], int]) -> None:
        code = 1
        try:
            os.chdir("/")
            os.umask(0o022)
            null = os.open(os.devnull, os.O_RDONLY)
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
            code = main()
        except BaseException:  # in its log, whatever it is; `start` quotes the last line
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def stop(self, timeout_s: float) -> None:
        """End the daemon and wait until nothing of it is left; does nothing when none runs.

        After `timeout_s` it is killed. Raises UnhealthyError when even that leaves something behind.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.running:
                break
            self._signal(number)
            _wait(lambda: not self.running, timeout_s)
        if self.running:
            raise UnhealthyError(f"a process of the agent does not end; find it with: fuser {self._pid_file}")
        self._pid_file.unlink(missing_ok=True)

    @property
    def running(self) -> bool:
        """Whether the daemon, or anything it started, lives."""
        try:
            lock = os.open(self._pid_file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock)
        finally:
            os.close(lock)

    def _pid(self) -> int:
        text = self._pid_file.read_text().strip()
        return int(text) if text.isdigit() else 0

    def _signal(self, number: signal.Signals) -> None:
        pid = self._pid()
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:  # it is gone, and what it started is about to follow
            return

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "it said nothing"


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
