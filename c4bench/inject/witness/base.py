"""The interface of a witness, and shared helpers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from c4bench import namespaces

Values = dict[str, float]
Measured = TypeVar("Measured")


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


# What a witness looks at: packets that the NIC itself sends, packets of the kernel, settings and counters.
RDMA, IP, STATE = "rdma", "ip", "state"


def plane_of(witness: Witness) -> str:
    """What a witness looks at: its `plane`, or `state` where it has none."""
    return str(getattr(witness, "plane", STATE))


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


class Compared(Generic[Measured]):
    """A witness that measures the same three times, and holds the later ones against the first.

    `values` is what is reported of a measurement. `seen(before, during)` is when the effect was first observed, None if
    it was not; `recovered(before, after)` whether the target has recovered.
    """

    def __init__(
        self,
        measure: Callable[[], Measured],
        values: Callable[[Measured], Values],
        seen: Callable[[Measured, Measured], float | None],
        recovered: Callable[[Measured, Measured], bool | None],
        plane: str = STATE,
    ) -> None:
        self.plane = plane
        self._measure, self._values, self._seen, self._recovered = measure, values, seen, recovered

    def before(self) -> Values:
        """Measure before the fault."""
        self._before = self._measure()
        return self._values(self._before)

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (all of it is measured after the onset)
        """Measure during the fault."""
        now = self._measure()
        return Evidence(self._values(now), self._seen(self._before, now))

    def after(self) -> Aftermath:
        """Measure after the revert."""
        now = self._measure()
        return Aftermath(self._values(now), self._recovered(self._before, now))


class Polled:
    """A witness that reads a state again and again: until it has `changed`, and after the fault until it `recovered`.

    Both compare the reading before the fault with the present one. What could not change, by `changeable(before)`, was
    not seen to.
    """

    def __init__(
        self,
        window_s: float,
        read: Callable[[], Values],
        changed: Callable[[Values, Values], bool],
        recovered: Callable[[Values, Values], bool | None],
        changeable: Callable[[Values], bool] = lambda _: True,
    ) -> None:
        self._window_s, self._read, self._changeable = window_s, read, changeable
        self._changed, self._recovered = changed, recovered

    def before(self) -> Values:
        """Read it before the fault."""
        self._before = self._read()
        return self._before

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (a reading does not depend on the onset)
        """Observed at the first changed reading."""
        observed_s = wait_until(lambda: self._changed(self._before, self._read()), self._window_s)
        return Evidence(self._read(), observed_s if self._changeable(self._before) else None)

    def after(self) -> Aftermath:
        """Recovered as the last reading says; it is read until that is not False."""
        wait_until(lambda: self._recovered(self._before, self._read()) is not False, self._window_s)
        now = self._read()
        return Aftermath(now, self._recovered(self._before, now))
