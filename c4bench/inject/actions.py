"""The few things the injector ever does to a host: plain data, so that they can be printed, journaled and done again.

Every action is idempotent or harmless when repeated: a revert that is killed half-way is simply done once more.
"""

import os
import shlex
import signal
import subprocess
from pathlib import Path

import msgspec

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject.processes import started_ticks
from c4bench.workload.controls import Controls

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


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """A rank's compute factor, set in its controls at `path` (see `workload.controls`)."""

    path: str
    factor: float

    def __str__(self) -> str:
        """As a person would say it."""
        return f"set the compute factor in {self.path} to {self.factor:g}"

    def perform(self) -> None:
        """Raises UsageError when no such rank runs here."""
        Controls.open(Path(self.path)).compute_factor = self.factor


Action = Run | Signal | Turn


class Plan(msgspec.Struct, frozen=True):
    """How to bring a fault about and undo it. The effect begins with the last of `apply`.

    `claims` are what it takes hold of: two faults with a claim in common cannot be in force together, since neither
    could put back what it found.
    """

    claims: tuple[str, ...]
    apply: tuple[Action, ...]
    revert: tuple[Action, ...]


def run(argv: tuple[str, ...], netns: str | None) -> str:
    """What the command says, run in the network namespace at `netns`. Raises UnhealthyError with its complaint."""
    try:
        # The journal's lock is inheritable on purpose: it must outlive a killed injector until its last command ends.
        with namespaces.network(netns):
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, close_fds=False, timeout=_COMMAND_TIMEOUT_S
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnhealthyError(f"{argv[0]}: {error}") from None
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise UnhealthyError(f"`{shlex.join(argv)}` was refused: {complaint or f'exit code {done.returncode}'}")
    return done.stdout
