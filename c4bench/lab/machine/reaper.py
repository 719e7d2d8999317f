"""Keeps a lab together where no PID namespace may be made, as in an ordinary container; run as a program, on its own.

    reaper.py PROGRAM ARGUMENT...

The lab's kernel is its child. When the kernel ends, when we are told to end, or when whoever started us dies,
everything of the lab is killed; a guardian beside us does that should we be killed ourselves. Only both killed at one
moment would leave guests running, in their container still: so this is done only where somebody says that it is one.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SWEEPS, _SWEEP_S = 200, 0.01
_GUEST = "/memfd:uml-userspace (deleted)"  # what the kernel runs its guests' processes in


def main(argv: list[str]) -> int:
    """Run the kernel; returns its exit code once nothing of the lab is left."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    program = os.path.realpath(argv[0])
    kernel = os.fork()
    if kernel == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execv(program, argv)
    _guard(program)

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        _sweep(program)
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    status = _await(kernel)
    _sweep(program)
    return os.waitstatus_to_exitcode(status) % 256


def _guard(program: str) -> None:
    """A process that lives until we do not."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        return
    os.close(writer)
    os.setsid()
    os.read(reader, 1)
    _sweep(program)
    os._exit(0)


def _await(kernel: int) -> int:
    """Reap whoever is left to us, until the kernel ends."""
    while True:
        pid, status = os.wait()
        if pid == kernel:
            return status


def _sweep(program: str) -> None:
    """Kill the lab's processes, until there are none: its kernel and its guests, which work in our directory."""
    for _ in range(_SWEEPS):
        found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _ours(entry, program)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_SWEEP_S)


def _ours(process: Path, program: str) -> bool:
    try:
        running = str((process / "exe").readlink())
        return running in {program, _GUEST} and (process / "cwd").readlink() == Path.cwd()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
