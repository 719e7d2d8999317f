"""Starts ranks by fork from a small process that has loaded their modules.

The agent itself is an event loop and must not fork. Importing numpy and pyverbs takes a second, which a fork saves. The
spawner is one thread on one socket: requests come in, process numbers and exits go out.
"""

import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.wire.framing import LENGTH_BYTES, frame
from c4bench.wire.messages import JobSpec


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """A request to start one rank, with its output in `log`."""

    job: JobSpec
    rank: int
    log: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A rank runs as process `pid`."""

    job: str
    rank: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Process `pid` has ended; negative codes are signals."""

    pid: int
    code: int


Report = Started | Exited
RankMain = Callable[[JobSpec, int], int]


def start(load: Callable[[], RankMain]) -> socket.socket:
    """Fork the spawner and return this end of its socket; the spawner ends when it closes.

    `load` is called in the spawner, so that the modules of ranks are imported there and not in the agent. If one is not
    installed, the agent still answers, and ranks end with the reason in their logs.
    """
    ours, theirs = socket.socketpair()
    release_and_freeze()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    try:
        spawner = _Spawner(theirs, _loaded(load))
        release_and_freeze()
        spawner.run()
    finally:
        os._exit(0)


def _loaded(load: Callable[[], RankMain]) -> RankMain:
    try:
        return load()
    except ImportError as error:
        reason = f"ranks cannot run on this host: {error}"

    def refuse(_job: JobSpec, _rank: int) -> int:
        raise UnhealthyError(reason)

    return refuse


class _Spawner:
    def __init__(self, connection: socket.socket, rank_main: RankMain) -> None:
        self._connection = connection
        self._rank_main = rank_main
        self._reader, self._writer = os.pipe()
        self._children: set[int] = set()

    def run(self) -> None:
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._writer)
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._reader, selectors.EVENT_READ)
            while self._serve_once(selector):
                pass
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _serve_once(self, selector: selectors.BaseSelector) -> bool:
        for key, _ in selector.select():
            if key.fileobj is self._connection:
                request = _read_frame(self._connection)
                if request is None:
                    return False
                self._spawn(msgspec.msgpack.decode(request, type=Spawn))
            else:
                os.read(self._reader, 4096)
                self._reap()
        return True

    def _spawn(self, request: Spawn) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(request)
        self._children.add(pid)
        self._report(Started(request.job.id, request.rank, pid))

    def _become(self, request: Spawn) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._connection.fileno(), self._reader, self._writer):
            os.close(descriptor)
        os.setsid()
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Parents may have replaced these; a rank writes to its log.
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        code = 1
        try:
            code = self._rank_main(request.job, request.rank)
        except BaseException:  # a failure of the rank: its log and exit code show it
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            self._report(Exited(pid, os.waitstatus_to_exitcode(status)))

    def _report(self, report: Report) -> None:
        self._connection.sendall(frame(msgspec.msgpack.encode(report)))


def _read_frame(connection: socket.socket) -> bytes | None:
    head = connection.recv(LENGTH_BYTES, socket.MSG_WAITALL)
    return connection.recv(int.from_bytes(head), socket.MSG_WAITALL) if len(head) == LENGTH_BYTES else None


def state_in(stat: bytes) -> str:
    """`running`, `stopped` or `exited`, from /proc/PID/stat, in which the state follows the name in brackets."""
    state = stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3]
    return "stopped" if state in b"Tt" else "exited" if state in b"ZX" else "running"


_STAT_BYTES = 512  # the state is well before this


class ProcessStat:
    """The open /proc/PID/stat of a process."""

    def __init__(self, pid: int) -> None:
        self._pid, self._file = pid, -1

    def state(self) -> str:
        """`running` or `stopped`. A process that has ended counts as running: its end is reported otherwise.

        Reading the open file fails when the process is gone.
        """
        with suppress(FileNotFoundError, ProcessLookupError):
            if self._file < 0:
                self._file = os.open(f"/proc/{self._pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            if state_in(os.pread(self._file, _STAT_BYTES, 0)) == "stopped":
                return "stopped"
        return "running"

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)


def release_and_freeze() -> None:
    """Return free memory, and exclude existing objects from garbage collection, which would write to shared pages."""
    gc.collect()
    gc.freeze()
    ctypes.CDLL(None).malloc_trim(0)
