"""A host's way to end itself: its kernel has no magic SysRq, so the trigger is a pipe to whoever keeps the host.

`c` crashes it, and it starts again as many seconds later as its kernel.panic says (0: never); `b` restarts it.
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
    """What can be switched off and on."""

    def boot(self) -> None:
        """Start it."""

    def crash(self) -> None:
        """End it without a word."""


def trigger(host: str) -> Path:
    """The pipe that a host sees as its SysRq trigger."""
    return _PLACE / host


def panic(host: str) -> Path:
    """What a host sees as its kernel.panic."""
    return _PLACE / f"{host}.panic"


def prepare(host: str) -> None:
    """Both, as a reset leaves them."""
    _PLACE.mkdir(exist_ok=True)
    if not trigger(host).exists():
        os.mkfifo(trigger(host), 0o600)
    panic(host).write_text("0\n")


class Power:
    """Does what hosts ask for themselves."""

    def __init__(self, hosts: Mapping[str, Machine], selector: selectors.BaseSelector) -> None:
        self._hosts = hosts
        self._due: dict[str, float] = {}
        for name in hosts:
            # Open for writing too, or it would read as ended whenever no host holds it.
            reader = os.open(trigger(name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            handler: Callable[[], None] = partial(self._obey, name, reader)
            selector.register(reader, selectors.EVENT_READ, handler)

    def due_in_s(self) -> float | None:
        """Seconds until the next host starts, None when none is to."""
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
