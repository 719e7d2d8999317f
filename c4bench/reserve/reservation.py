"""The client of a reservation: a keeper on every host, renewed periodically; all hosts or none."""

import getpass
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from c4bench.decoding import DecodingError, from_json, from_yaml
from c4bench.errors import C4Error, UnhealthyError, UsageError, meant
from c4bench.foreign_text import one_line
from c4bench.inventory import Access, Inventory
from c4bench.model.reservation import LONGEST_COMMAND, Claim, Holder
from c4bench.remote import BARE_PYTHON, Connection, Session, connect
from c4bench.remote.clock import ClockOffset, offset

_KEEPER = Path(__file__).with_name("keeper.py")
_AT_ONCE = 32
_TIMEOUT_S = 60.0
_RENEWALS = 3  # per TTL, so that a late one does no harm
Reach = Callable[[str, Access], Connection]


class _Answer(msgspec.Struct, frozen=True):
    held: bool = True
    by: Holder = Holder()
    error: str = ""
    left: tuple[str, ...] = ()
    time_s: float = 0.0


class Reservation:
    """Reserved hosts, until `close` or until `ttl_s` without a renewal; `lost` has those that ended early."""

    def __init__(
        self, inventory: Inventory, hosts: Sequence[str], command: str, *, ttl_s: float, reach: Reach = connect
    ) -> None:
        """Reserve the hosts. Raises UnhealthyError that names the holder if one is reserved; then none is reserved."""
        self._inventory, self._reach, self._ttl_s = inventory, reach, ttl_s
        user = f"{getpass.getuser()}@{socket.gethostname()}"
        self._claim = Claim(os.urandom(8).hex(), user, one_line(command, LONGEST_COMMAND), ttl_s)
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._sessions: dict[str, Session] = {}
        self.lost: dict[str, str] = {}
        with ExitStack() as undo:
            # All users begin with the same host, so that one of two competing users gets all hosts.
            first, *others = sorted(hosts)
            self._acquire([first], undo)
            self._acquire(others, undo)
            self._undo = undo.pop_all()
        self._renewing = threading.Thread(target=self._renew, name="c4bench-reservation", daemon=True)
        self._renewing.start()

    def _acquire(self, hosts: Sequence[str], undo: ExitStack) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for host, session in zip(hosts, pool.map(self._keeper, hosts), strict=True):
                self._sessions[host] = undo.enter_context(closing(session))
        for host in hosts:
            self._refuse_held(host, _read(host, self._sessions[host]))

    def _keeper(self, host: str) -> Session:
        access = self._inventory.access[host]
        claim = msgspec.to_builtins(self._claim) | {"inject": str(Path(access.python).with_name("inject"))}
        return self._reach(host, access).start([*BARE_PYTHON, _KEEPER.read_text(), msgspec.json.encode(claim).decode()])

    def _refuse_held(self, host: str, answer: _Answer) -> None:
        if answer.error:
            raise UnhealthyError(f"{host} cannot be reserved: {one_line(answer.error)}")
        if not answer.held:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(answer.by.since_s))
            raise UnhealthyError(
                f"{host} is reserved by {one_line(answer.by.user)} since {since} ({one_line(answer.by.command)}); "
                "wait for its end; "
                f"it expires {answer.by.ttl_s:g} s after its client has gone"
            )

    def _renew(self) -> None:
        while not self._ended.wait(self._ttl_s / _RENEWALS):
            self._ask(dict.fromkeys(self._sessions, "renew"))

    def dirty(self) -> dict[str, str]:
        """By host, the first fault or residue that its injector lists, or how the reservation was lost."""
        python = {host: self._inventory.access[host].python for host in self._sessions}
        answers = self._ask({host: f"health {python[host]}" for host in self._sessions})
        return {host: one_line(answer.left[0]) for host, answer in answers.items() if answer.left} | self.lost

    def clocks(self) -> dict[str, ClockOffset]:
        """The clock offset of each host that is not lost."""
        with self._lock:
            clocks = {}
            for host in self._sessions.keys() - self.lost.keys():
                with self._marking_lost(host):
                    clocks[host] = offset(partial(self._clock, host))
        return clocks

    def _clock(self, host: str) -> float:
        self._sessions[host].write_line("clock")
        return _read(host, self._sessions[host]).time_s

    def _ask(self, questions: Mapping[str, str]) -> dict[str, _Answer]:
        """Ask all keepers in parallel; a host whose keeper has ended becomes `lost`."""
        answers = {}
        with self._lock:
            for host, question in questions.items():
                with self._marking_lost(host):
                    self._sessions[host].write_line(question)
            for host in questions.keys() - self.lost.keys():
                with self._marking_lost(host):
                    answers[host] = _read(host, self._sessions[host])
        return answers

    @contextmanager
    def _marking_lost(self, host: str) -> Iterator[None]:
        try:
            yield
        except UnhealthyError as error:
            self.lost.setdefault(host, f"its reservation is lost: {error}")

    def close(self) -> None:
        """Release the hosts."""
        self._ended.set()
        self._renewing.join()
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _read(host: str, session: Session) -> _Answer:
    line = session.read_line(_TIMEOUT_S)
    try:
        return from_json(line, _Answer)
    except DecodingError as error:
        raise UnhealthyError(f"{host}: its keeper sent {line[:80]!r}: {error}") from None


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
