"""The records of one job in one round of windows: at most one window per host."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from c4bench.c4d.columns import Floats, Ints
from c4bench.model.telemetry import ArrivalRecord, ConnRecord, OpRecord, Window

Record = TypeVar("Record")


class Layer(Generic[Record]):
    """The records of one layer, window after window."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._counts: list[int] = []

    def add(self, records: Sequence[Record]) -> None:
        """The records of the next window."""
        self.records += records
        self._counts.append(len(records))

    def windows(self) -> Ints:
        """Which window each record is of."""
        return np.repeat(np.arange(len(self._counts)), self._counts)


class Batch:
    """Windows by their hosts and ends (on the host's clock), with their records."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self._ends_s: list[float] = []
        self.ops: Layer[OpRecord] = Layer()
        self.conns: Layer[ConnRecord] = Layer()
        self.arrivals: Layer[ArrivalRecord] = Layer()

    def add(self, window: Window) -> None:
        """The next window."""
        self.hosts.append(window.host)
        self._ends_s.append(window.end_s)
        self.ops.add(window.ops)
        self.conns.add(window.conns)
        self.arrivals.add(window.arrivals)

    def ends_s(self, windows: Ints) -> Floats:
        """When these windows ended."""
        return np.asarray(self._ends_s)[windows]
