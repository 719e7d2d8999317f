"""Let a host crash or restart itself. The lab's kernel has no magic SysRq, so the trigger is a pipe to the supervisor.

`c` crashes the host, which boots again after the seconds in its kernel.panic (0: never); `b` restarts it.
"""

import logging
import os
import selectors
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

_logger = logging.getLogger(__name__)

_PLACE = Path("/run/c4/power")
# From the reset to a running system; a real one takes minutes.
_RESTART_S = 1.0


class Machine(Protocol):
    """A host that can be switched off and on."""

    def boot(self) -> None:
        """Start it."""

    def crash(self) -> None:
        """End it without closing its connections."""


def trigger(host: str) -> Path:
    """The pipe that a host sees as its SysRq trigger."""
    return _PLACE / host


def panic(host: str) -> Path:
    """What a host sees as its kernel.panic."""
    return _PLACE / f"{host}.panic"


def prepare(host: str) -> None:
    """Make both files as they are after a reset."""
    _PLACE.mkdir(exist_ok=True)
    if not trigger(host).exists():
        os.mkfifo(trigger(host), 0o600)
    panic(host).write_text("0\n")


class Power:
    """Crashes and restarts hosts at their own request."""

    def __init__(self, hosts: Mapping[str, Machine], selector: selectors.BaseSelector) -> None:
        self._hosts = hosts
        self._due: dict[str, float] = {}
        for name in hosts:
            # Open for writing too: otherwise reading would report end of file whenever no host has it open.
            reader = os.open(trigger(name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            handler: Callable[[], None] = partial(self._obey, name, reader)
            selector.register(reader, selectors.EVENT_READ, handler)

    def due_in_s(self) -> float | None:
        """Seconds until the next host starts, None when no start is scheduled."""
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def apply_due(self) -> None:
        """Start the hosts whose time has come."""
        for name in [name for name, at_s in self._due.items() if at_s <= time.monotonic()]:
            del self._due[name]
            _logger.info("%s: boot", name, extra={"host": name})
            self._hosts[name].boot()

    def _obey(self, name: str, reader: int) -> None:
        letter = os.read(reader, 64)[:1]
        waits_s = {b"c": float(panic(name).read_text()), b"b": _RESTART_S}
        if letter in waits_s:
            again = f"boots in {waits_s[letter]:g} s" if waits_s[letter] > 0 else "stays down"
            _logger.info("%s: crash by its own SysRq %s, %s", name, letter.decode(), again, extra={"host": name})
            self._hosts[name].crash()
            if waits_s[letter] > 0:
                self._due[name] = time.monotonic() + waits_s[letter]
