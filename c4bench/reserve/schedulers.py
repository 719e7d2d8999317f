"""Drain hosts in their job scheduler and resume them: Slurm, Kubernetes, or commands from a file."""

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from c4bench.decoding import DecodingError, from_yaml
from c4bench.errors import C4Error, UnhealthyError, UsageError, meant

_COMMAND_S = 900.0
_POLL_S = 5.0


class Scheduler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commands, run here for each host, with `{host}` for its name in the inventory.

    `busy` prints something while the host still runs jobs; it is polled until it prints nothing, for at most
    `within_s`.
    """

    drain: tuple[str, ...]
    resume: tuple[str, ...]
    busy: tuple[str, ...] = ()
    within_s: float = 3600.0


KNOWN = {
    "slurm": Scheduler(
        drain=("scontrol", "update", "nodename={host}", "state=drain", "reason=c4bench"),
        resume=("scontrol", "update", "nodename={host}", "state=resume"),
        busy=("squeue", "--noheader", "--nodelist={host}", "--states=running,completing", "--format=%i"),
    ),
    "kubernetes": Scheduler(
        drain=("kubectl", "drain", "{host}", "--ignore-daemonsets", "--delete-emptydir-data"),
        resume=("kubectl", "uncordon", "{host}"),
    ),
}


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name, or from that YAML file. Raises UsageError."""
    if name in KNOWN:
        return KNOWN[name]
    try:
        return from_yaml(Path(name).read_bytes(), Scheduler)
    except OSError as error:
        near = meant(name, KNOWN, f"; give {', '.join(KNOWN)}, or a file with drain and resume")
        raise UsageError(f"--c4-scheduler {name}: {error.strerror}{near}") from None
    except DecodingError as error:
        raise UsageError(f"{name}: {error}; it has drain, resume, busy and within_s") from None


@contextmanager
def drained(known: Scheduler, hosts: Sequence[str]) -> Iterator[None]:
    """The hosts are drained within the block: they have no jobs and get none.

    All of them are resumed at the end, also after an error. Raises UnhealthyError when the scheduler refuses, or a
    host is still busy after `within_s`.
    """
    draining: list[str] = []
    try:
        for host in hosts:
            draining.append(host)
            _run(known.drain, host)
        _wait_idle(known, hosts)
        yield
    except C4Error as error:
        raise type(error)(f"{error}{_give_back(known, draining)}") from None
    except BaseException:
        _give_back(known, draining)
        raise
    problems = _give_back(known, draining)
    if problems:
        raise UnhealthyError(problems.removeprefix("; "))


def _give_back(known: Scheduler, hosts: Sequence[str]) -> str:
    """Resume every host; return the message about those for which that failed, "" for none."""
    problems = [problem for host in hosts if (problem := _try(known.resume, host))]
    return f"; not resumed in the scheduler, resume by hand: {', '.join(problems)}" if problems else ""


def _wait_idle(known: Scheduler, hosts: Sequence[str]) -> None:
    until_s = time.monotonic() + known.within_s
    waiting = [host for host in hosts if known.busy]
    while waiting := [host for host in waiting if _run(known.busy, host).strip()]:
        if time.monotonic() > until_s:
            raise UnhealthyError(
                f"{', '.join(waiting)} still busy {known.within_s:g} s after they were drained; "
                "raise within_s or end their jobs"
            )
        time.sleep(min(_POLL_S, known.within_s / 10))


def _run(command: Sequence[str], host: str) -> str:
    argv = [word.replace("{host}", host) for word in command]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnhealthyError(f"{host}: cannot run `{shlex.join(argv)}`: {error}") from None
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise UnhealthyError(f"{host}: `{shlex.join(argv)}` was refused: {output[-1]}")
    return done.stdout


def _try(command: Sequence[str], host: str) -> str:
    try:
        _run(command, host)
    except UnhealthyError as error:
        return str(error)
    return ""
