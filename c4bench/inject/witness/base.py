"""What every witness does, and what several need."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from c4bench import namespaces

Values = dict[str, float]


class Evidence(NamedTuple):
    """What was measured during the fault, and when it first showed (host's clock); None where it did not."""

    values: Values
    observed_s: float | None


class Aftermath(NamedTuple):
    """What was measured after the fault, and whether the target is itself again; None where nothing can tell."""

    values: Values
    recovered: bool | None


class Witness(Protocol):
    """Looks at one target three times, in this order. Blocks for at most the request's `witness_s` each time.

    After the fault it may give what comes back by itself more.
    """

    def before(self) -> Values:
        """The target in health."""

    def during(self, onset_s: float) -> Evidence:
        """The target since the fault was applied at `onset_s`."""

    def after(self) -> Aftermath:
        """The target once the fault was reverted."""


class Traffic(NamedTuple):
    """An interface's counters since it was made, as the kernel keeps them."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int


class Counters:
    """The interface counters of a network namespace. They count what passes the device itself, below its queueing."""

    def __init__(self, netns: str | None) -> None:
        self._netns = netns

    def read(self, interface: str) -> Traffic:
        """The counters of `interface`; zeros when it is not there."""
        with namespaces.network(self._netns):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        for line in lines:
            name, _, rest = line.partition(":")
            if name.strip() == interface:
                fields = [int(field) for field in rest.split()]
                return Traffic(fields[0], fields[1], fields[8], fields[9])
        return Traffic(0, 0, 0, 0)


def wait_until(holds: Callable[[], bool], timeout_s: float, step_s: float = 0.001) -> float | None:
    """When `holds` first held (host's clock), None if it did not within `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while True:
        now_s = time.time()
        if holds():
            return now_s
        if time.monotonic() >= end_s:
            return None
        time.sleep(step_s)
