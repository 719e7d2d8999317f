"""How the ranks of a job find each other, learn their paths, and hear of each other's failures."""

from collections.abc import Sequence
from typing import Protocol

from c4bench.errors import C4Error
from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.fabric import Flow
from c4bench.model.telemetry import Failure

EVERYBODY = -1


class AbsentError(C4Error):
    """Ranks did not come to an exchange in time."""

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        self.ranks = tuple(ranks)
        names = ", ".join(map(str, ranks))
        super().__init__(f"rank{'s' if len(ranks) > 1 else ''} {names} did not come in {timeout_s:g} s")


class FailedError(C4Error):
    """A member gave up while others were waiting for it."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason)


class FailureSignal(Protocol):
    """Tells that a member of one communicator has failed."""

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when it has."""

    def failure(self) -> Failure | None:
        """Who and why; blocks until `fd` is readable. None when there is nobody left who could tell."""

    def close(self) -> None:
        """Stop listening."""


class RelayChannel(Protocol):
    """Word between the members of one communicator, out of band. What is told may come twice, late, or not at all."""

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when there is word."""

    def tell(self, to: int, body: bytes) -> None:
        """Tell rank `to`, or all other ranks with EVERYBODY; returns at once."""

    def lost(self, loss: NetworkLoss) -> None:
        """Have C4D know what the communicator goes on without; returns at once, and may not get there."""

    def take(self) -> list[bytes] | None:
        """What has come. None when there is nobody left who could bring word."""

    def close(self) -> None:
        """Hang up."""


class Rendezvous(Protocol):
    """What a communicator asks of the control plane. Names of communicators are unique within a job, and used once."""

    def exchange(self, comm: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """Give `payload`, block until all `size` ranks gave theirs under `key`, and return them by rank.

        Raises AbsentError that names the missing ranks after `timeout_s`, and FailedError as soon as a member fails. A
        key is used once.
        """

    def fail(self, comm: str, failure: Failure) -> None:
        """Tell every member, those that come later too. Only the first failure of a communicator counts."""

    def alarm(self, comm: str) -> FailureSignal:
        """Listen for failures of a communicator's members."""

    def line(self, comm: str, rank: int) -> RelayChannel:
        """Rank `rank`'s line to the other members."""

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """C4P's answer: a UDP source port for each flow, in order; 0 leaves a flow to ECMP."""

    def release(self, flows: Sequence[str]) -> None:
        """These routed flows, named by id, are gone; their share of the fabric is free."""
