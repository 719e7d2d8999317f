"""The interface of a witness, and shared helpers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from c4bench import namespaces

Values = dict[str, float]


class Evidence(NamedTuple):
    """The values during the fault, and when its effect was first observed (host's clock), None if it was not."""

    values: Values
    observed_s: float | None


class Aftermath(NamedTuple):
    """The values after the fault, and whether the target has recovered; None where that cannot be known."""

    values: Values
    recovered: bool | None


class Witness(Protocol):
    """Measures one target three times, in this order, each time for at most the request's `witness_s`.

    `after` may take longer for what recovers by itself, each for a switch that has no answer left.
    """

    def before(self) -> Values:
        """Measure before the fault."""

    def during(self, onset_s: float) -> Evidence:
        """Measure during the fault, which was applied at `onset_s` (host's clock)."""

    def after(self) -> Aftermath:
        """Measure after the revert."""


class Traffic(NamedTuple):
    """The kernel's counters of an interface since it was created."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int


class Counters:
    """The interface counters of a network namespace. They count below the qdiscs, at the device."""

    def __init__(self, netns: str | None) -> None:
        self._netns = netns

    def read(self, interface: str) -> Traffic:
        """The counters of `interface`; zeros when it does not exist."""
        with namespaces.network(self._netns):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        for line in lines:
            name, _, rest = line.partition(":")
            if name.strip() == interface:
                fields = [int(field) for field in rest.split()]
                return Traffic(fields[0], fields[1], fields[8], fields[9])
        return Traffic(0, 0, 0, 0)


def wait_until(holds: Callable[[], bool], timeout_s: float, step_s: float = 0.001) -> float | None:
    """When `holds` was first true (host's clock), None if it was not within `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while True:
        now_s = time.time()
        if holds():
            return now_s
        if time.monotonic() >= end_s:
            return None
        time.sleep(step_s)
