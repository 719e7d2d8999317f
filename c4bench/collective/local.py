"""A control plane within one process, for ranks that are threads of it."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from c4bench.collective.rendezvous import EVERYBODY, AbsentError, FailedError
from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.fabric import Flow
from c4bench.model.telemetry import Failure


class LocalFailureSignal:
    """Tells one rank of a communicator's first failure (see `FailureSignal`)."""

    def __init__(self, rendezvous: "LocalRendezvous", comm: str) -> None:
        self.fd = os.eventfd(0)
        self._rendezvous, self._comm = rendezvous, comm

    def ring(self) -> None:
        """There is a failure."""
        os.eventfd_write(self.fd, 1)

    def failure(self) -> Failure | None:
        """What it is."""
        return self._rendezvous.failures.get(self._comm)

    def close(self) -> None:
        """Listen no more."""
        self._rendezvous.silence(self._comm, self)
        os.close(self.fd)


class LocalRelayChannel:
    """Word between the ranks of one communicator (see `RelayChannel`)."""

    def __init__(self, lines: dict[int, "LocalRelayChannel"], rank: int, losses: list[NetworkLoss]) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._lines, self._rank, self._losses = lines, rank, losses
        self._heard: deque[bytes] = deque()
        lines[rank] = self

    def tell(self, to: int, body: bytes) -> None:
        """Put it on the others' lines."""
        for rank, line in list(self._lines.items()):
            if rank != self._rank and to in (rank, EVERYBODY):
                line.hear(body)

    def lost(self, loss: NetworkLoss) -> None:
        """Keep it for whoever asks."""
        self._losses.append(loss)

    def hear(self, body: bytes) -> None:
        """Keep what has come until it is taken."""
        self._heard.append(body)
        with suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def take(self) -> list[bytes]:
        """What has come."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def close(self) -> None:
        """Listen no more."""
        self._lines.pop(self._rank, None)
        os.close(self.fd)


class LocalRendezvous:
    """Exchanges and failures within the process (see `Rendezvous`). Paths are left to ECMP."""

    def __init__(self) -> None:
        self.failures: dict[str, Failure] = {}
        self.losses: list[NetworkLoss] = []
        self._news = threading.Condition()
        self._given: dict[tuple[str, str], dict[int, bytes]] = {}
        self._missing: dict[tuple[str, str], list[int]] = {}
        self._alarms: dict[str, list[LocalFailureSignal]] = {}
        self._lines: dict[str, dict[int, LocalRelayChannel]] = {}

    def exchange(self, comm: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather `payload`. When the time of one rank is over, it is over for all who wait."""
        name = (comm, key)
        with self._news:
            given = self._given.setdefault(name, {})
            given[rank] = payload
            self._news.notify_all()
            self._news.wait_for(lambda: len(given) == size or name in self._missing or comm in self.failures, timeout_s)
            if len(given) == size:
                return [given[each] for each in range(size)]
            if comm in self.failures and name not in self._missing:
                raise FailedError(self.failures[comm])
            missing = self._missing.setdefault(name, sorted(set(range(size)) - given.keys()))
            self._news.notify_all()
            raise AbsentError(missing, timeout_s)

    def fail(self, comm: str, failure: Failure) -> None:
        """Tell every member."""
        with self._news:
            self.failures.setdefault(comm, failure)
            self._news.notify_all()
            for alarm in self._alarms.get(comm, ()):
                alarm.ring()

    def alarm(self, comm: str) -> LocalFailureSignal:
        """Listen for failures."""
        made = LocalFailureSignal(self, comm)
        with self._news:
            self._alarms.setdefault(comm, []).append(made)
            if comm in self.failures:
                made.ring()
        return made

    def silence(self, comm: str, alarm: LocalFailureSignal) -> None:
        """Ring this alarm no more."""
        with self._news:
            self._alarms[comm].remove(alarm)

    def line(self, comm: str, rank: int) -> LocalRelayChannel:
        """A line to the other ranks."""
        with self._news:
            return LocalRelayChannel(self._lines.setdefault(comm, {}), rank, self.losses)

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """Leave them all to ECMP."""
        return [0 for _ in flows]

    def release(self, flows: Sequence[str]) -> None:
        """Nothing was held for them."""
