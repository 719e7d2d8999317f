"""Process 1 of the lab once the overlay is mounted: build the fabric, boot the hosts, run the command, end."""

import ctypes
import os
import socket
import sys
import termios
from pathlib import Path

import msgspec

from c4bench import logs
from c4bench.errors import C4Error
from c4bench.lab.guest.end import end, failed
from c4bench.lab.spec import HOST_LOGS, LOG_FILE, LabSpec

_PR_SET_TIMERSLACK = 29


def main(spec_path: str) -> None:
    """Run the lab described in `spec_path` and end the kernel. Never returns."""
    home = Path(spec_path).parent
    try:
        logs.configure("info", stream=(home / LOG_FILE).open("w", buffering=1))
        spec = msgspec.json.decode(Path(spec_path).read_bytes(), type=LabSpec)
        socket.sethostname("c4lab")
        wake_on_time()
        if not spec.interactive:
            pass_bytes_unchanged(1)
        # Agents need what the machine may lack, such as pyverbs: process 1 must say so, and must not just end.
        from c4bench.lab.guest.supervisor import Supervisor  # noqa: PLC0415

        supervisor = Supervisor(spec)
        result = supervisor.run()
        supervisor.keep_logs(home / HOST_LOGS)
    except (C4Error, ImportError, OSError) as error:
        result = failed(error)
    end(home, result)


def wake_on_time() -> None:
    """Wake the lab's processes when they asked to. Raises OSError.

    Linux may wake a sleeper up to 50 us late, together with another (prctl(2), PR_SET_TIMERSLACK): what one process did
    then moved others by as much. All processes inherit the shortest slack, 1 ns.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def pass_bytes_unchanged(console: int) -> None:
    """Add no carriage returns before newlines: the console is a terminal to the kernel and a pipe to us."""
    attributes = termios.tcgetattr(console)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(console, termios.TCSANOW, attributes)


if __name__ == "__main__":
    main(sys.argv[1])
