"""A control plane within one process, for ranks that are threads."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from c4bench.collective.rendezvous import EVERYBODY, AbsentError, EcmpPaths, FailedError
from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.telemetry import Failure


class LocalFailureSignal:
    """Signals a communicator's first failure to one rank (see `FailureSignal`)."""

    def __init__(self, rendezvous: "LocalRendezvous", comm: str) -> None:
        self.fd = os.eventfd(0)
        self._rendezvous, self._comm = rendezvous, comm

    def notify(self) -> None:
        """Make `fd` readable."""
        os.eventfd_write(self.fd, 1)

    def failure(self) -> Failure | None:
        """The first failure, if there is one."""
        return self._rendezvous.failures.get(self._comm)

    def close(self) -> None:
        """Stop listening."""
        self._rendezvous.unsubscribe(self._comm, self)
        os.close(self.fd)


class LocalRelayChannel:
    """Messages between the ranks of one communicator (see `RelayChannel`)."""

    def __init__(self, relays: dict[int, "LocalRelayChannel"], rank: int, losses: list[NetworkLoss]) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._relays, self._rank, self._losses = relays, rank, losses
        self._inbox: deque[bytes] = deque()
        relays[rank] = self

    def send(self, to: int, body: bytes) -> None:
        """Deliver a message to rank `to`, or to all other ranks."""
        for rank, relay in list(self._relays.items()):
            if rank != self._rank and to in (rank, EVERYBODY):
                relay.deliver(body)

    def lost(self, loss: NetworkLoss) -> None:
        """Keep the report for tests to read."""
        self._losses.append(loss)

    def deliver(self, body: bytes) -> None:
        """Queue a message and wake up the reader."""
        self._inbox.append(body)
        with suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def poll(self) -> list[bytes]:
        """All messages that have arrived."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def close(self) -> None:
        """Stop receiving."""
        self._relays.pop(self._rank, None)
        os.close(self.fd)


class LocalRendezvous(EcmpPaths):
    """Exchanges and failures within the process (see `Rendezvous`). Paths are left to ECMP."""

    def __init__(self) -> None:
        self.failures: dict[str, Failure] = {}
        self.losses: list[NetworkLoss] = []
        self._changed = threading.Condition()
        self._payloads: dict[tuple[str, str], dict[int, bytes]] = {}
        self._missing: dict[tuple[str, str], list[int]] = {}
        self._failure_signals: dict[str, list[LocalFailureSignal]] = {}
        self._relays: dict[str, dict[int, LocalRelayChannel]] = {}

    def exchange(self, comm: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather `payload`. When one rank times out, all waiting ranks do."""
        name = (comm, key)
        with self._changed:
            payloads = self._payloads.setdefault(name, {})
            payloads[rank] = payload
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(payloads) == size or name in self._missing or comm in self.failures, timeout_s
            )
            if len(payloads) == size:
                return [payloads[each] for each in range(size)]
            if comm in self.failures and name not in self._missing:
                raise FailedError(self.failures[comm])
            missing = self._missing.setdefault(name, sorted(set(range(size)) - payloads.keys()))
            self._changed.notify_all()
            raise AbsentError(missing, timeout_s)

    def enter(self, comm: str, seats: Sequence[int]) -> None:
        """Do nothing: a name is enough within one process."""

    def leave(self, comm: str) -> None:
        """Do nothing."""

    def fail(self, comm: str, failure: Failure, sender: int) -> None:  # noqa: ARG002
        """Notify every member."""
        with self._changed:
            self.failures.setdefault(comm, failure)
            self._changed.notify_all()
            for failure_signal in self._failure_signals.get(comm, ()):
                failure_signal.notify()

    def failure_signal(self, comm: str) -> LocalFailureSignal:
        """Subscribe to failures."""
        signal = LocalFailureSignal(self, comm)
        with self._changed:
            self._failure_signals.setdefault(comm, []).append(signal)
            if comm in self.failures:
                signal.notify()
        return signal

    def unsubscribe(self, comm: str, failure_signal: LocalFailureSignal) -> None:
        """Stop notifying this signal."""
        with self._changed:
            self._failure_signals[comm].remove(failure_signal)

    def relay(self, comm: str, rank: int) -> LocalRelayChannel:
        """A relay channel to the other ranks."""
        with self._changed:
            return LocalRelayChannel(self._relays.setdefault(comm, {}), rank, self.losses)
