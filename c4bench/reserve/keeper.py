"""Holds the reservation of a host. It is sent there as text, so it needs Python 3.8 only and imports no c4bench.

The reservation is a file lock, so it ends with this process: when its input closes (the client has gone), when no line
comes for the TTL, or when the host restarts. It answers lines: `renew` and `clock` with the time of day, and `health
PYTHON` with the faults in force and residues that the injector lists.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress

# Every user can open a file there, and a restart clears it.
_LOCK_FILE = "/dev/shm/c4bench.reservation"
_HEALTH_S = 30


def main(claim: dict[str, object]) -> None:
    """Reserve the host, or report who has it; then serve."""
    descriptor = open_lock_file()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = read(descriptor)
        # One machine may be in an inventory under two names.
        if holder.get("id") != claim["id"]:
            send({"held": False, "by": holder})
            return
    else:
        write(descriptor, dict(claim, since_s=time.time()))
    send({"held": True})
    serve(float(str(claim["ttl_s"])))


def open_lock_file() -> int:
    """Open the lock file, or create it: in a sticky folder another user's file can be opened, but not with O_CREAT."""
    while True:
        with suppress(FileNotFoundError):
            return os.open(_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        with suppress(FileExistsError):
            descriptor = os.open(_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def read(descriptor: int) -> dict[str, object]:
    """Who has the host; empty if the file does not say."""
    try:
        found = json.loads(os.pread(descriptor, 65536, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write(descriptor: int, holder: dict[str, object]) -> None:
    """Write the holder into the lock file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def serve(ttl_s: float) -> None:
    """Answer until the input ends or no line comes for `ttl_s`."""
    while select.select([sys.stdin], [], [], ttl_s)[0]:
        word, _, rest = sys.stdin.readline().strip().partition(" ")
        if not word:
            return
        send(health(rest) if word == "health" else {"time_s": time.time()})


def health(python: str) -> dict[str, object]:
    """The lines of the injector's `status`; none if it cannot run."""
    command = [python, "-m", "c4bench.inject", "status"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_HEALTH_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {"left": []}
    return {"left": done.stdout.splitlines() if done.returncode == 0 else []}


def send(answer: dict[str, object]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
