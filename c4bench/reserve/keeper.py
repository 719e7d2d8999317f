"""Holds the reservation of a host. It is sent there as text, so it needs Python 3.8 only and imports no c4bench.

The reservation is a file lock, so it ends with the process that holds it: when its input closes (the client has gone),
when no line comes for the TTL, or when the host restarts. It answers lines: `renew` and `clock` with the time of day,
and `health PYTHON` with the faults in force and residues that the injector lists.

Whoever may open a file may lock it, so the file is root's, in a folder of root's. An operator has it locked by the
injector, which runs this file as `hold CLAIM`. An account that may not become root has a file of its own, which keeps
apart what this account does.
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
from pathlib import Path
from typing import IO

# A restart clears it.
_ROOTS_FOLDER = Path("/run/c4bench-reservation")
_HEALTH_S = 30
_SUDO_S = 20
_LONGEST_ANSWER = 65536


def main(claim: dict[str, object]) -> None:
    """Reserve the host, or report who has it; then serve."""
    inject = str(claim.pop("inject", ""))
    holder: IO[str] | None = None
    if os.geteuid() != 0 and permitted(inject):
        # Its end of the pipe closes when we end, and that ends the reservation.
        command = ("sudo", "-n", inject, "reserve", json.dumps(claim))
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holder = process.stdout
        answer = decoded(holder.readline(_LONGEST_ANSWER)) if holder else {}
        if not isinstance(answer.get("held"), bool):
            answer = {"held": False, "error": f"sudo {inject} does not answer; run it there to see why"}
    else:
        answer = reserve(claim)
    send(answer)
    if answer.get("held"):
        serve(float(str(claim["ttl_s"])), holder)


def hold(claim: dict[str, object]) -> None:
    """Reserve the host, or report who has it; keep it until the input ends."""
    answer = reserve(claim)
    send(answer)
    while answer["held"] and sys.stdin.readline(_LONGEST_ANSWER):
        pass


def permitted(inject: str) -> bool:
    """Whether this account may call the injector by sudo."""
    if not os.access(inject, os.X_OK):
        return False
    try:
        asked = subprocess.run(("sudo", "-n", "-l", inject), capture_output=True, timeout=_SUDO_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def reserve(claim: dict[str, object]) -> dict[str, object]:
    """Lock the file, for as long as this process lives; the answer says whether that was possible."""
    try:
        descriptor = open_lock_file()
    except OSError as error:
        return {"held": False, "error": str(error)}
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = read(descriptor)
        # One machine may be in an inventory under two names.
        return {"held": holder.get("id") == claim["id"], "by": holder}
    write(descriptor, dict(claim, since_s=time.time()))
    return {"held": True}


def open_lock_file() -> int:
    """Open or create the file in a folder that nobody else can change. Raises OSError where there is none."""
    folder = _ROOTS_FOLDER if os.geteuid() == 0 else own_folder()
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o170022 != 0o040000:
        raise OSError(f"{folder} is not a folder that only its owner can change; remove it")
    # Several hosts may share a home.
    path = folder / f"{os.uname().nodename}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def own_folder() -> Path:
    """Where an account that is not root has its files: what a login has made for it, or its home."""
    runtime = Path(f"/run/user/{os.geteuid()}")
    return (runtime if runtime.is_dir() else Path.home()) / ".c4bench-reservation"


def read(descriptor: int) -> dict[str, object]:
    """Who has the host; empty if the file does not say."""
    return decoded(os.pread(descriptor, _LONGEST_ANSWER, 0))


def decoded(text: str | bytes) -> dict[str, object]:
    """The JSON object in a text; empty if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(descriptor: int, holder: dict[str, object]) -> None:
    """Write the holder into the lock file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def serve(ttl_s: float, holder: IO[str] | None) -> None:
    """Answer until the input ends, the output of the lock's `holder` does, or no line comes for `ttl_s`."""
    while select.select([sys.stdin, *([holder] if holder else [])], [], [], ttl_s)[0] == [sys.stdin]:
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
    *words, given = sys.argv[1:]
    (hold if words == ["hold"] else main)(json.loads(given))
