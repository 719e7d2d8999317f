"""What the injector's caller cannot do to it: everything inherited is reset, and its output never waits.

Sudo passes on more than an environment: priorities, limits, signals that are ignored, timers, a control group that its
owner may freeze. The injector resets all of it when it starts, to what a process of root's own has, and the watchdog
inherits that.

The caller chooses what is behind stdout and stderr: a pipe that is full, a terminal that has been stopped, a file of a
file system of its own. So a thread writes, and whatever the injector says only joins a queue, also under the journal's
lock.
"""

import ctypes
import io
import math
import os
import platform
import queue
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UnhealthyError

# Python's own choices, and stops that a terminal asks for: a stopped injector would keep the journal's lock.
_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
# What a login gives; everything else is unlimited.
_SOFT_LIMITS = {resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_STACK: 8 << 20, resource.RLIMIT_CORE: 0}
_VITAL = {f"RLIMIT_{name}": getattr(resource, f"RLIMIT_{name}") for name in ("CPU", "FSIZE", "DATA", "AS", "NOFILE")}
_MOST_FILES = Path("/proc/sys/fs/nr_open")
_PR_SET_TIMERSLACK, _SLACK_NS = 29, 50_000
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_OF_THIS_PROCESS = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ControlGroup(NamedTuple):
    """A group of this process: the folder of its hierarchy's root, the group's path in it, and the hierarchy's type."""

    top: Path
    path: str
    kind: str


def reset(*, roots: bool) -> None:
    """Reset everything, for root's own call (`roots`) but its control groups and what this root has no right to reset.

    Raises UnhealthyError where another caller's control group cannot be left, or its limits cannot be raised.
    """
    os.chdir("/")
    os.umask(0o022)
    _open_standard_files()
    _reset_signals()
    _reset_priorities()
    _reset_limits()
    if not roots:
        _require_limits()
        for group in control_groups():
            _leave(group)


def _open_standard_files() -> None:
    """A file of root's that gets one of these numbers would be written to as the caller's output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)


def _reset_signals() -> None:
    for timer in _TIMERS:
        signal.setitimer(timer, 0.0)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler = signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL
        with suppress(OSError, ValueError):  # the C library keeps some to itself
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _reset_priorities() -> None:
    with suppress(OSError):  # a container's root may not have the right to raise them
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    if platform.machine() in _IOPRIO_SET:
        _libc.syscall(_IOPRIO_SET[platform.machine()], _OF_THIS_PROCESS, 0, 0)
    # With a slack of hours, a lease would end that much later.
    _libc.prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)


def _reset_limits() -> None:
    most_files = int(_MOST_FILES.read_text())
    for kind in {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}:
        _, inherited = resource.getrlimit(kind)
        hard = most_files if kind == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
        for most in (hard, inherited):  # a container's root may not have the right to raise the hard one
            soft = _SOFT_LIMITS.get(kind, most)
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft if most == resource.RLIM_INFINITY else min(soft, most), most))
                break


def _require_limits() -> None:
    """Raises UnhealthyError for a limit below that of the host's first process by which a revert could fail."""
    for name, kind in _VITAL.items():
        ours, first = (_finite(resource.prlimit(pid, kind)[1]) for pid in (0, 1))
        if ours < first:
            raise UnhealthyError(f"the caller has set {name} to {ours:g}, and root cannot raise it here; log in again")


def _finite(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit


def control_groups() -> list[ControlGroup]:
    """The control groups of this process in hierarchies of which they are not the root."""
    tops = _hierarchies()
    groups = []
    for line in Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
        _, kind, path = line.split(":", 2)
        if path != "/" and kind in tops:
            groups.append(ControlGroup(tops[kind], path, kind))
    return groups


def _hierarchies() -> dict[str, Path]:
    """Where each hierarchy is mounted, by what /proc/self/cgroup calls it: "" for version 2."""
    tops: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        sort, _, options = after.split(" ")[:3]
        if sort == "cgroup2":
            tops[""] = Path(before.split(" ")[4])
        elif sort == "cgroup":
            known = [option for option in options.split(",") if option not in {"rw", "ro", "xattr", "clone_children"}]
            tops[",".join(known)] = Path(before.split(" ")[4])
    return tops


def _leave(group: ControlGroup) -> None:
    """Move to the root of the hierarchy. A group of version 1 that only root can change is left alone."""
    if group.kind and _is_roots(group):
        return
    try:
        (group.top / "cgroup.procs").write_text("0")
    except OSError as error:
        if not _is_roots(group):
            raise UnhealthyError(
                f"the control group {group.path} belongs to its caller, who could freeze the injector there, and "
                f"cannot be left ({error.strerror}); log in by SSH and try again"
            ) from None


def _is_roots(group: ControlGroup) -> bool:
    """Whether nobody but root can change the group or one that it is in."""
    folder = group.top
    for part in Path(group.path.lstrip("/")).parts:
        folder /= part
        for path in (folder, folder / "cgroup.procs", folder / "cgroup.freeze"):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return False
    return True


# More than what the journal of a host with many faults gives.
_MOST_WAITING = 10_000
# At the end of the command: for a reader on the other side of the world.
_PATIENCE_S = 5.0
_POLL_S = 0.01


class Output(io.TextIOBase):
    """A stream of text that goes to a `descriptor` of the caller's.

    `write` never waits: when 10,000 pieces wait for a reader, more are dropped. A forked process writes nothing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._home = os.getpid()

    def write(self, text: str) -> int:
        """Have it written; returns its length."""
        if text and os.getpid() == self._home and self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(text.encode(errors="backslashreplace"))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="c4bench-output", daemon=True)
                self._thread.start()
        return len(text)

    def fileno(self) -> int:
        """The caller's descriptor."""
        return self._descriptor

    def finish(self, until_s: float) -> None:
        """Wait until everything is written, at most until then (monotonic)."""
        if self._thread is not None:
            self._waiting.put(b"")
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while piece := self._waiting.get():
            try:
                self._write_all(piece)
            except OSError:  # the reader has gone
                return

    def _write_all(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[os.write(self._descriptor, piece) :]
            except BlockingIOError:  # the caller has made it non-blocking
                time.sleep(_POLL_S)


@contextmanager
def of_caller() -> Iterator[None]:
    """Within the block, stdout and stderr are of this kind: of answers, log lines and tracebacks alike."""
    streams = out, err = Output(1), Output(2)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        until_s = time.monotonic() + _PATIENCE_S
        for stream in streams:
            stream.finish(until_s)
