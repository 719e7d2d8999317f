"""Processes that revert a fault at the end of its lease, whether or not the injector is still alive."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import c4bench
from c4bench import namespaces
from c4bench.model.fault import Lease

_DONE = b"."
_SYSTEMD = Path("/run/systemd/system")
_TIMEOUT_S = 20.0


class LeaseGuard(Protocol):
    """Reverts the fault at the end of its lease unless cancelled."""

    def cancel(self) -> None:
        """The fault is over."""


def arm(deadline_s: float, lease: Lease, revert: Callable[[], object]) -> LeaseGuard:
    """Start a watchdog process, and on hosts with systemd a timer too, which survives if that process is killed."""
    guards: list[LeaseGuard] = [Watchdog(deadline_s, revert)]
    if _SYSTEMD.exists():
        guards.append(SystemdTimer(deadline_s, lease))
    return LeaseGuards(guards)


class LeaseGuards:
    """Several guards, each a backup of the others."""

    def __init__(self, guards: list[LeaseGuard]) -> None:
        self._guards = guards

    def cancel(self) -> None:
        """The fault is over."""
        for guard in self._guards:
            guard.cancel()


class SystemdTimer:
    """A transient timer unit (systemd-run(1)) that heals this fault, half a second after the watchdog."""

    _AFTER_S = 0.5

    def __init__(self, deadline_s: float, lease: Lease) -> None:
        self._unit = f"c4bench-{lease.id.replace('.', '-')}"
        delay_s = max(0.0, deadline_s - time.monotonic()) + self._AFTER_S
        options = (f"--unit={self._unit}", f"--on-active={delay_s:.3f}", "--timer-property=AccuracySec=100ms")
        # The unit does not inherit our environment, and c4bench may be outside the interpreter's own path.
        code = f"--setenv=PYTHONPATH={Path(c4bench.__file__).parents[1]}"
        heal = (sys.executable, "-P", "-m", "c4bench.inject", "heal", lease.id)
        _systemd("systemd-run", "--quiet", "--collect", *options, code, *heal)

    def cancel(self) -> None:
        """Stop the timer; one that has fired no longer exists."""
        _systemd("systemctl", "--quiet", "stop", f"{self._unit}.timer")


def _systemd(*argv: str) -> None:
    """Ask systemd for something. It writes nothing to the caller; the watchdog does without it."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S)


class Watchdog:
    """A detached process that calls `revert` at `deadline_s` (monotonic clock) unless cancelled before.

    It has its own session and none of our files, so it survives a closed SSH session and our death.
    """

    def __init__(self, deadline_s: float, revert: Callable[[], object]) -> None:
        sys.stdout.flush()
        reader, self._writer = os.pipe()
        child = os.fork()
        if child == 0:
            _watch(reader, deadline_s, revert)
        os.close(reader)
        os.waitpid(child, 0)

    def cancel(self) -> None:
        """The fault is over: end without reverting."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._writer, _DONE)
        os.close(self._writer)


def _watch(reader: int, deadline_s: float, revert: Callable[[], object]) -> None:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _detach(reader)
        if not _cancelled(reader, deadline_s):
            revert()
    finally:
        os._exit(0)


def _detach(keep: int) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (numbers, not paths)
        if descriptor != keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
    namespaces.unpin_all()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.chdir("/")


def _cancelled(reader: int, deadline_s: float) -> bool:
    """Wait for the cancellation or the deadline. End of file means that our parent died: the deadline holds."""
    ready, _, _ = select.select([reader], [], [], _left_s(deadline_s))
    if ready and os.read(reader, 1) == _DONE:
        return True
    time.sleep(_left_s(deadline_s))
    return False


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
