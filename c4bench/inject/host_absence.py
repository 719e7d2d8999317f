"""Detect from outside that a host stops answering, and that it answers again."""

import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from c4bench.model.fabric import Host

# The `witness` of a fault that takes the host away: the controller itself observes it.
ABSENCE = "absence"
Reach = Callable[[Host], bool]
_SSH_PORT = 22
_ANSWER_S = 0.25
_GONE_STEP_S, _BACK_STEP_S = 2e-3, 0.02


class HostGone(NamedTuple):
    """The last attempt with an answer began at `last_s`, the first without at `time_s` (our clock)."""

    last_s: float
    time_s: float


def answers(host: Host) -> bool:
    """Whether the host's management address accepts connections."""
    try:
        with socket.create_connection((host.address, _SSH_PORT), timeout=_ANSWER_S):
            return True
    except OSError:
        return False


def wait_gone(host: Host, reach: Reach, timeout_s: float) -> HostGone | None:
    """When the host stopped answering, None when it answered until the timeout."""
    until_s, last_s = time.monotonic() + timeout_s, time.time()
    while time.monotonic() < until_s:
        asked_s = time.time()
        if not reach(host):
            return HostGone(last_s, asked_s)
        last_s = asked_s
        time.sleep(_GONE_STEP_S)
    return None


def wait_back(host: Host, reach: Reach, timeout_s: float) -> float | None:
    """When the host answered again, None when it did not until the timeout."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if reach(host):
            return time.time()
        time.sleep(_BACK_STEP_S)
    return None
