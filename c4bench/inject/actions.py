"""Everything the injector can do to a host, as plain data that is printed, journaled and repeated.

Every action is idempotent or harmless when repeated, so a revert that was killed is run again from the start.
"""

import os
import select
import shlex
import signal
import stat
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import msgspec

from c4bench import namespaces
from c4bench.collective.gpu_links import GpuKnob, GpuLinksFile
from c4bench.decoding import DecodingError, json_in
from c4bench.errors import C4Error, UnhealthyError
from c4bench.inject import processes, reading, switch_shell
from c4bench.inject.pause_frames import SendPauses
from c4bench.inject.switch_shell import Span, SwitchFault, UnreachableError
from c4bench.workload.controls import ControlsFile, Knob

# The kernel kills a process in milliseconds; after this time it cannot.
_TIMEOUT_S = 20.0


def exhaust(group: Path, limit_bytes: int) -> None:
    """Exhaust it until the kernel has killed a process of the group, or the child has had its time."""
    child = os.fork()
    if child == 0:
        _exhaust(group, limit_bytes)
    descriptor = os.pidfd_open(child)
    try:
        if not select.select([descriptor], [], [], _TIMEOUT_S)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        os.close(descriptor)


def _exhaust(group: Path, limit_bytes: int) -> NoReturn:
    try:
        # Exempt this process from the out-of-memory killer.
        Path("/proc/self/oom_score_adj").write_text("-1000")
        # The process that is killed must run first: the kernel retries the allocation until that process has ended.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        (group / "memory.max").write_text(str(limit_bytes))
        # One call, which fails and frees everything; touching page by page would block in a page fault at the limit.
        os.posix_fallocate(os.memfd_create("c4bench"), 0, 2 * limit_bytes)
    finally:
        os._exit(0)


T = TypeVar("T")

# `ip` and `tc` finish in milliseconds; after this time the kernel hangs.
_COMMAND_TIMEOUT_S = 20.0


class Run(msgspec.Struct, frozen=True, tag="run"):
    """A command, in the network namespace at `netns` (None: the host's own).

    `refusal` is what it prints when it has done nothing, though it ends with exit code 0; "" for none.
    """

    argv: tuple[str, ...]
    netns: str | None = None
    refusal: str = ""

    def __str__(self) -> str:
        """As an engineer would type it."""
        return shlex.join((*(["nsenter", f"--net={self.netns}"] if self.netns else []), *self.argv))

    def perform(self) -> None:
        """Run it. Raises UnhealthyError with the command's error output."""
        printed = run(self.argv, self.netns)
        if self.refusal and self.refusal in printed:
            raise UnhealthyError(f"`{self}` was refused: {self.refusal}")


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """A signal to process `pid`, if it still is the one that began `started_ticks` after boot, and still `user`'s."""

    pid: int
    started_ticks: int
    user: int
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]

    def __str__(self) -> str:
        """As an engineer would type it."""
        known = self.number in set(signal.Signals)
        name = signal.Signals(self.number).name.removeprefix("SIG") if known else str(self.number)
        return f"kill -{name} {self.pid}"

    def perform(self) -> None:
        """Send it. Raises UnhealthyError when that process has ended."""
        processes.signal_to(self.pid, self.started_ticks, self.user, self.number)


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Move process `pid`, if it still is the one that `Signal` describes, into the control group in folder `group`."""

    pid: int
    started_ticks: int
    user: int
    group: str

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"echo {self.pid} > {self.group}/cgroup.procs"

    def perform(self) -> None:
        """Move it. Raises UnhealthyError when that process has ended, or the kernel refuses it."""
        with processes.opened(self.pid, self.started_ticks, self.user) as descriptor:
            Write(f"{self.group}/cgroup.procs", str(self.pid)).perform()
            if not processes.lives(descriptor):
                raise UnhealthyError(f"process {self.pid} has ended while it was moved; see who is in {self.group}")


class SetKnob(msgspec.Struct, frozen=True, tag="turn"):
    """A value of a rank's shared controls at `path` (see `workload.controls`)."""

    path: str
    knob: Knob
    value: float

    def __str__(self) -> str:
        """As a person would say it."""
        return f"set {self.knob} in {self.path} to {self.value:.9g}"

    def perform(self) -> None:
        """Set it. Raises UsageError when no such rank runs here."""
        descriptor = processes.open_controls(Path(self.path), os.O_RDWR)
        try:
            ControlsFile(descriptor, Path(self.path)).set(self.knob, self.value)
        finally:
            os.close(descriptor)


class SetGpuLink(msgspec.Struct, frozen=True, tag="set_gpu_link"):
    """A value of the link of a GPU to others of its host, as their ranks read it (see `collective.gpu_links`)."""

    gpu: int
    knob: GpuKnob
    value: float

    def __str__(self) -> str:
        """As a person would say it."""
        return f"set {self.knob} of the link of GPU {self.gpu} to {self.value:.9g}"

    def perform(self) -> None:
        """Set it. Raises UsageError where no rank has a GPU of its own."""
        descriptor, path = processes.open_gpu_links(os.O_RDWR)
        try:
            GpuLinksFile(descriptor, path).set(self.gpu, self.knob, self.value)
        finally:
            os.close(descriptor)


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Text written to a file in /proc or /sys."""

    path: str
    text: str

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"echo {shlex.quote(self.text)} > {self.path}"

    def perform(self) -> None:
        """Write it. Raises UnhealthyError when the kernel refuses it."""
        try:
            # Neither create nor truncate: these files belong to the kernel.
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                os.write(descriptor, f"{self.text}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnhealthyError(f"{self.path} does not take {self.text!r}: {error.strerror}") from None


class Fill(msgspec.Struct, frozen=True, tag="fill"):
    """A file of root's whose `size_bytes` are allocated at once, on a disk or in memory."""

    path: str
    size_bytes: int

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"fallocate --length {self.size_bytes} {self.path}"

    def perform(self) -> None:
        """Allocate it. Raises UnhealthyError when there is not enough space."""
        try:
            # Others may write to the folder: do not follow, wait for or fill what they have put there.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                _require_own_file(descriptor, self.path)
                os.posix_fallocate(descriptor, 0, self.size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnhealthyError(f"{self.path} does not take {self.size_bytes} bytes: {error.strerror}") from None


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """A file that a fault created. On a disk it outlives a restart of the host."""

    path: str

    def __str__(self) -> str:
        """As an engineer would type it."""
        return f"rm -f {self.path}"

    def perform(self) -> None:
        """Delete it, if it exists. Raises UnhealthyError when that is refused."""
        try:
            Path(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise UnhealthyError(f"{self.path} cannot be deleted: {error.strerror}") from None

    @property
    def left(self) -> bool:
        """Whether it is still there."""
        return os.path.lexists(self.path)


class StepClock(msgspec.Struct, frozen=True, tag="step_clock"):
    """Set the time of day `offset_s` from undisturbed time: `time_s` plus the monotonic time since `monotonic_s`.

    Repeating it gives the same clock.
    """

    time_s: float
    monotonic_s: float
    offset_s: float

    def __str__(self) -> str:
        """As a person would say it."""
        return f"set the clock {self.offset_s:+g} s from its own time"

    def perform(self) -> None:
        """Set the clock. Raises UnhealthyError where that is not permitted."""
        now_s = self.time_s + (time.monotonic() - self.monotonic_s) + self.offset_s
        try:
            time.clock_settime(time.CLOCK_REALTIME, now_s)
        except OSError as error:
            raise UnhealthyError(f"the clock cannot be set: {error.strerror}") from None


class ExhaustMemory(msgspec.Struct, frozen=True, tag="exhaust"):
    """Exhaust the memory of the control group `group` from a protected child, until the kernel kills a process."""

    group: str
    limit_bytes: int

    def __str__(self) -> str:
        """As a person would say it."""
        return (
            f"in {self.group}: memory.max {self.limit_bytes}, and allocate memory until the kernel has killed a process"
        )

    def perform(self) -> None:
        """Exhaust it. Raises UnhealthyError when no process was killed."""
        group = Path(self.group)
        exhaust(group, self.limit_bytes)
        try:
            events = (group / "memory.events").read_text().splitlines()
            # Processes that are left there may allocate again.
            (group / "memory.max").write_text("max")
        except OSError as error:
            raise UnhealthyError(
                f"{self.group}: {error.strerror}; check that the kernel has the memory controller"
            ) from None
        if "oom_kill 0" in events:
            raise UnhealthyError(f"{self.group}: the kernel has killed no process")


class ApplyOnSwitch(msgspec.Struct, frozen=True, tag="apply_on_switch"):
    """A change of an agentless switch, with a timer there that undoes it when the lease ends.

    The switch's uptime was `uptime_ms` at `read_s` of our monotonic clock, on which the lease ends at `deadline_s`.
    """

    fault: SwitchFault
    uptime_ms: int
    read_s: float
    deadline_s: float = 0.0

    def __str__(self) -> str:
        """As an engineer would type it there."""
        return f"on {self.fault.name}, with a timer: {'; '.join(self.fault.apply)}"

    def perform(self) -> None:
        """Make it. Raises UnhealthyError when the switch refused it, and is as it was."""
        self.timed()

    def timed(self) -> Span:
        """Make it as `perform` does; returns when it took effect."""
        return switch_shell.apply(self.fault, self.uptime_ms + int(1000 * (self.deadline_s - self.read_s)))


class RevertOnSwitch(msgspec.Struct, frozen=True, tag="revert_on_switch"):
    """The end of a change of an agentless switch."""

    fault: SwitchFault

    def __str__(self) -> str:
        """As an engineer would type it there."""
        return f"on {self.fault.name}: {'; '.join(self.fault.revert)}"

    def perform(self) -> None:
        """Undo it. Raises UnreachableError when the switch does not answer, UnhealthyError for lines that failed."""
        if problem := switch_shell.revert(self.fault):
            raise UnhealthyError(problem)


def _require_own_file(descriptor: int, path: str) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        raise UnhealthyError(f"{path} is not c4bench's; remove it")


Action = (
    Run
    | Signal
    | Join
    | SetKnob
    | SetGpuLink
    | Write
    | Fill
    | Delete
    | StepClock
    | ExhaustMemory
    | SendPauses
    | ApplyOnSwitch
    | RevertOnSwitch
)


def attempt(action: Action) -> str:
    """Perform it; returns what went wrong, "" for nothing. No error keeps the caller from the next action.

    Raises UnreachableError when a switch did not answer.
    """
    try:
        action.perform()
    except UnreachableError:  # it may not have been performed
        raise
    except C4Error as error:
        return str(error)
    except Exception as error:  # a bug, which must not cost the other reverts
        return f"{action}: {type(error).__name__}: {error}"
    return ""


class Schedule(msgspec.Struct, frozen=True):
    """An intermittent fault: from its onset in force for `duty` of each `period_s`, at most `count` times."""

    period_s: float
    duty: float
    count: int


class Plan(msgspec.Struct, frozen=True):
    """How to apply a fault and revert it. The effect begins within the last `sudden` actions of `apply`.

    `claims` are the settings it changes. Two faults with a common claim cannot be in force together, since neither
    could restore what it found. With a `rhythm` the fault is reverted and applied again while it lasts.
    """

    claims: tuple[str, ...]
    apply: tuple[Action, ...]
    revert: tuple[Action, ...]
    sudden: int = 1
    rhythm: Schedule | None = None


def together(*plans: Plan) -> Plan:
    """Join plans: first all preparing actions, then those that take effect, as close together as possible."""
    prepare = [action for plan in plans for action in plan.apply[: -plan.sudden]]
    effects = [action for plan in plans for action in plan.apply[-plan.sudden :]]
    return Plan(
        claims=tuple(dict.fromkeys(claim for plan in plans for claim in plan.claims)),
        apply=(*prepare, *effects),
        revert=tuple(action for plan in plans for action in plan.revert),
        sudden=len(effects),
    )


def leased(plan: Plan, deadline_s: float) -> Plan:
    """The plan with the end of its lease (monotonic clock), for switches that end it by themselves."""
    apply = (
        msgspec.structs.replace(action, deadline_s=deadline_s) if isinstance(action, ApplyOnSwitch) else action
        for action in plan.apply
    )
    return msgspec.structs.replace(plan, apply=tuple(apply))


def run(argv: tuple[str, ...], netns: str | None, stdin: str = "") -> str:
    """Run a command in the network namespace at `netns`; return its output. Raises UnhealthyError with its stderr."""
    return reading.answer((argv, netns, stdin), partial(_run, argv, netns, stdin))


def _run(argv: tuple[str, ...], netns: str | None, stdin: str) -> str:
    try:
        # The journal's lock is inherited on purpose: if the injector is killed, its last command still holds it.
        with namespaces.network(netns):
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                errors="backslashreplace",
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


def json_of(tool: str, output: str, kind: type[T]) -> T:
    """The `kind` in the JSON that a tool has printed. Raises UnhealthyError, which names the tool."""
    try:
        return json_in(output, kind)
    except DecodingError as error:
        raise UnhealthyError(f"{tool} printed what c4bench cannot read ({error}); see what it prints here") from None
