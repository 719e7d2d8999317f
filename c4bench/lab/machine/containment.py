"""Let no guest process outlive its lab: a killed kernel would leave its traced processes running on the machine.

The kernel is therefore process 1 of a PID namespace in a new user namespace: when it dies, for whatever reason, the
machine's kernel kills everything in that namespace. Each process between us and the kernel dies with its parent.

An ordinary container allows no such namespaces. If the user says that this is one (`C4BENCH_CONTAINER=1`), a reaper
kills the lab's processes instead; one that it misses is still inside the container.

SIGTERM and SIGHUP end a lab as Ctrl-C does: what has been made for it is removed before the program ends.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

from c4bench.errors import UnhealthyError

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE = 0x0040000
_UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child=KILL", "--")
_REAPER = Path(__file__).with_name("reaper.py")
_libc = ctypes.CDLL(None)  # looked up before any fork: the child only makes the call


def die_with_parent() -> None:
    """In a child between fork and exec: die with the parent, and lay out memory the same way every time.

    The layout decides how much memory the lab's kernel adds to its own, which would differ between runs of a seed.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _libc.personality(_ADDR_NO_RANDOMIZE)


@cache
def contained() -> bool:
    """Whether this machine lets us create the namespaces."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def in_container() -> bool:
    """Whether the user says that this is a container, which keeps all its processes inside."""
    return os.environ.get("C4BENCH_CONTAINER", "") not in {"", "0"}


def wrap(argv: list[str]) -> list[str]:
    """`argv` as process 1 of new namespaces, or under a reaper. Raises UnhealthyError where neither is allowed."""
    if contained():
        return [*_UNSHARE, *argv]
    if in_container():
        return [sys.executable, "-I", str(_REAPER), *argv]
    raise UnhealthyError(
        "this machine forbids new namespaces, and a lab must not run outside one: allow them "
        "(kernel.unprivileged_userns_clone=1, user.max_user_namespaces), or in a container set C4BENCH_CONTAINER=1"
    )


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise SystemExit with a shell's exit code, 128 + signal.

    A signal that is ignored, as SIGHUP is under `nohup`, stays ignored. Outside the main thread, where Python lets
    nobody handle signals, nothing changes.
    """
    ours = threading.current_thread() is threading.main_thread()
    numbers = [number for number in _ENDING if ours and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _exit) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
