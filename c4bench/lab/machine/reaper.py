"""Kill all processes of a lab at its end, where no PID namespace can be created, as in an ordinary container.

    reaper.py PROGRAM ARGUMENT...

The lab's kernel is the reaper's child. When the kernel ends, the reaper is terminated or its parent dies, the reaper
kills all processes of the lab. If the reaper itself is killed, a guardian process does so. Guests go on running only if
both are killed at the same time; they stay inside the container, so the reaper is used only where the user says that
this is one.
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
    """Run the kernel; return its exit code once no process of the lab is left."""
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
    """Start the guardian, a process that kills the lab's processes when the reaper has died."""
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
    """Reap orphaned processes until the kernel ends; return its status."""
    while True:
        pid, status = os.wait()
        if pid == kernel:
            return status


def _sweep(program: str) -> None:
    """Kill the lab's processes until none is left: the kernel and the guests, whose working directory is ours."""
    for _ in range(_SWEEPS):
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _ours(entry, program)]
        if not pids:
            return
        for pid in pids:
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
