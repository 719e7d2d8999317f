"""The few things the injector ever does to a host: plain data, so that they can be printed, journaled and done again.

Every action is idempotent or harmless when repeated: a revert that is killed half-way is simply done once more.
"""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject.processes import started_ticks
from c4bench.workload.controls import Controls, Knob

# `ip` and `tc` answer in milliseconds; one that does not has met a kernel that will not answer at all.
_COMMAND_TIMEOUT_S = 20.0


class Run(msgspec.Struct, frozen=True, tag="run"):
    """A command, in the network namespace at `netns` (None: the host's own)."""

    argv: tuple[str, ...]
    netns: str | None = None

    def __str__(self) -> str:
        """As an engineer would type it."""
        return shlex.join((*(["nsenter", f"--net={self.netns}"] if self.netns else []), *self.argv))

    def perform(self) -> None:
        """Raises UnhealthyError with the command's own words when it fails."""
        run(self.argv, self.netns)


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """A signal to process `pid`, if it is still the one that began `started_ticks` after boot."""

    pid: int
    started_ticks: int
    number: int

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"kill -{signal.Signals(self.number).name.removeprefix('SIG')} {self.pid}"

    def perform(self) -> None:
        """Raises UnhealthyError when that process is no more."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise UnhealthyError(f"process {self.pid} has ended") from None
        try:
            # Held by descriptor, the number can no longer pass to another process between this look and the signal.
            if started_ticks(self.pid) != self.started_ticks:
                raise UnhealthyError(f"process {self.pid} has ended")
            signal.pidfd_send_signal(descriptor, self.number)
        finally:
            os.close(descriptor)


class SetKnob(msgspec.Struct, frozen=True, tag="turn"):
    """One of a rank's knobs, set in its controls at `path` (see `workload.controls`)."""

    path: str
    knob: Knob
    value: float

    def __str__(self) -> str:
        """As a person would say it."""
        return f"set {self.knob} in {self.path} to {self.value:.9g}"

    def perform(self) -> None:
        """Raises UsageError when no such rank runs here."""
        Controls.open(Path(self.path)).set(self.knob, self.value)


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Text into a file of the kernel's."""

    path: str
    text: str

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"echo {shlex.quote(self.text)} > {self.path}"

    def perform(self) -> None:
        """Raises UnhealthyError when the kernel refuses it."""
        try:
            # No truncation: what the kernel offers is not a file to be made.
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                os.write(descriptor, f"{self.text}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnhealthyError(f"{self.path} does not take {self.text!r}: {error.strerror}") from None


class Fill(msgspec.Struct, frozen=True, tag="fill"):
    """A file of `size_bytes` that takes its room at once, on a disk or in memory."""

    path: str
    size_bytes: int

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"fallocate --length {self.size_bytes} {self.path}"

    def perform(self) -> None:
        """Raises UnhealthyError when there is no such room."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnhealthyError(f"{self.path} does not take {self.size_bytes} bytes: {error.strerror}") from None


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """A file that a fault has made."""

    path: str

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"rm -f {self.path}"

    def perform(self) -> None:
        """Does nothing when it is gone."""
        Path(self.path).unlink(missing_ok=True)


class StepClock(msgspec.Struct, frozen=True, tag="step_clock"):
    """The time of day, put `offset_s` away from where it would be had it gone on since `monotonic_s` read `time_s`.

    Said in this way it can be said twice.
    """

    time_s: float
    monotonic_s: float
    offset_s: float

    def __str__(self) -> str:
        """As a person would say it."""
        return f"set the clock {self.offset_s:+g} s from its own time"

    def perform(self) -> None:
        """Raises UnhealthyError where the clock may not be set."""
        now_s = self.time_s + (time.monotonic() - self.monotonic_s) + self.offset_s
        try:
            time.clock_settime(time.CLOCK_REALTIME, now_s)
        except OSError as error:
            raise UnhealthyError(f"the clock does not let itself be set: {error.strerror}") from None


class ExhaustMemory(msgspec.Struct, frozen=True, tag="exhaust"):
    """Memory taken in the control group `group` by a child that cannot be killed for it, until somebody else is."""

    group: str
    limit_bytes: int

    def __str__(self) -> str:
        """As a person would say it."""
        return f"in {self.group}: memory.max {self.limit_bytes}, and take memory until the kernel has killed somebody"

    def perform(self) -> None:
        """Raises UnhealthyError when nobody was killed."""
        group = Path(self.group)
        child = os.fork()
        if child == 0:
            _exhaust_memory(group, self.limit_bytes)
        os.waitpid(child, 0)
        try:
            events = (group / "memory.events").read_text().splitlines()
            # Who is left there may have memory again.
            (group / "memory.max").write_text("max")
        except OSError as error:
            raise UnhealthyError(f"{self.group}: {error.strerror}; has the kernel the memory controller?") from None
        if "oom_kill 0" in events:
            raise UnhealthyError(f"{self.group}: the kernel has killed nobody")


Action = Run | Signal | SetKnob | Write | Fill | Delete | StepClock | ExhaustMemory


class Schedule(msgspec.Struct, frozen=True):
    """A fault that comes and goes: in force for `duty` of each `period_s`, `count` times at most, from its onset on."""

    period_s: float
    duty: float
    count: int


class Plan(msgspec.Struct, frozen=True):
    """How to bring a fault about and undo it. The effect begins within the last `sudden` actions of `apply`.

    `claims` are what it takes hold of: two faults with a claim in common cannot be in force together, since neither
    could put back what it found. With a `rhythm` it is undone and done again while it lasts.
    """

    claims: tuple[str, ...]
    apply: tuple[Action, ...]
    revert: tuple[Action, ...]
    sudden: int = 1
    rhythm: Schedule | None = None


def together(*plans: Plan) -> Plan:
    """Plans as one: everything that prepares first, then what takes effect, as close together as can be."""
    prepare = [action for plan in plans for action in plan.apply[: -plan.sudden]]
    effects = [action for plan in plans for action in plan.apply[-plan.sudden :]]
    return Plan(
        claims=tuple(dict.fromkeys(claim for plan in plans for claim in plan.claims)),
        apply=(*prepare, *effects),
        revert=tuple(action for plan in plans for action in plan.revert),
        sudden=len(effects),
    )


def _exhaust_memory(group: Path, limit_bytes: int) -> NoReturn:
    try:
        # Out of its reach first: the kernel must not choose us.
        Path("/proc/self/oom_score_adj").write_text("-1000")
        # Whoever is killed comes before us: at the limit the kernel tries again and again until it has ended.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        (group / "memory.max").write_text(str(limit_bytes))
        # One call that fails and gives all back: whoever touched page by page would hang in a fault at the limit.
        os.posix_fallocate(os.memfd_create("c4bench"), 0, 2 * limit_bytes)
    finally:
        os._exit(0)


def run(argv: tuple[str, ...], netns: str | None, stdin: str = "") -> str:
    """What the command says to `told`, run in the network namespace at `netns`. UnhealthyError with its complaint."""
    try:
        # The journal's lock is inheritable on purpose: it must outlive a killed injector until its last command ends.
        with namespaces.network(netns):
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                close_fds=False,
                timeout=_COMMAND_TIMEOUT_S,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnhealthyError(f"{argv[0]}: {error}") from None
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise UnhealthyError(f"`{shlex.join(argv)}` was refused: {complaint or f'exit code {done.returncode}'}")
    return done.stdout
