"""The control plane of communicators: exchange of addresses, planned paths, and failure notification."""

from collections.abc import Sequence
from typing import Protocol

from c4bench.errors import C4Error
from c4bench.model.diagnosis import NetworkLoss
from c4bench.model.fabric import USUAL_QPS, Flow
from c4bench.model.telemetry import Failure

EVERYBODY = -1


class AbsentError(C4Error):
    """Ranks did not join an exchange in time."""

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        self.ranks = tuple(ranks)
        names = ", ".join(map(str, ranks))
        super().__init__(f"rank{'s' if len(ranks) > 1 else ''} {names} did not join within {timeout_s:g} s")


class FailedError(C4Error):
    """A member failed while others waited for it."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason)


class FailureSignal(Protocol):
    """Signals that a member of one communicator has failed."""

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable on a failure."""

    def failure(self) -> Failure | None:
        """The failure; blocks until `fd` is readable. None when the control plane is gone."""

    def close(self) -> None:
        """Stop listening."""


class RelayChannel(Protocol):
    """Out-of-band messages between members of one communicator. They may arrive twice, late, or not at all."""

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when messages have arrived."""

    def send(self, to: int, body: bytes) -> None:
        """Send a message to rank `to`, or to all other ranks with EVERYBODY; returns at once."""

    def lost(self, loss: NetworkLoss) -> None:
        """Report to C4D a component that the communicator has lost; returns at once, and may get lost."""

    def poll(self) -> list[bytes] | None:
        """The messages that have arrived. None when the control plane is gone."""

    def close(self) -> None:
        """Close the channel."""


class Rendezvous(Protocol):
    """What a communicator needs of the control plane. A communicator's name is unique within a job, and used once."""

    def exchange(self, comm: str, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather: block until all `size` ranks have given a payload under `key`, and return them by rank.

        Use a key once. Raises AbsentError, which names the missing ranks, after `timeout_s`, and FailedError as soon as
        a member fails.
        """

    def enter(self, comm: str, seats: Sequence[int]) -> None:
        """Say, before anything else about a communicator, which ranks of the job its members are (see `Member`)."""

    def leave(self, comm: str) -> None:
        """Say, after everything else about a communicator, that this rank has left it."""

    def fail(self, comm: str, failure: Failure, sender: int) -> None:
        """As rank `sender`, notify every member, also those that join later. Only the first failure counts."""

    def failure_signal(self, comm: str) -> FailureSignal:
        """Subscribe to failures of a communicator's members."""

    def relay(self, comm: str, rank: int) -> RelayChannel:
        """The relay channel of rank `rank` to the other members."""

    def choose_qps(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Ask C4P how many QPs each connection between one of these pairs of NICs should have."""

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """Ask C4P for paths: a UDP source port for each flow, in order; 0 leaves a flow to ECMP.

        All are `ASK_QPS` on a fabric that hashes the queue pairs that packets are for; then ask with these.
        """

    def route_qps(self, flows: Sequence[Flow], qps: Sequence[int]) -> list[int]:
        """The same where `route` has answered `ASK_QPS`: by the numbers of the queue pairs that packets are for."""

    def release(self, flows: Sequence[str]) -> None:
        """Release the paths of these flows, by id."""


class EcmpPaths:
    """The part of a `Rendezvous` about paths where nobody plans: connections have the usual number of QPs, on ECMP."""

    def choose_qps(self, pairs: Sequence[tuple[str, str]]) -> int:  # noqa: ARG002
        """The usual number."""
        return USUAL_QPS

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """Leave all flows to ECMP."""
        return [0 for _ in flows]

    def route_qps(self, flows: Sequence[Flow], qps: Sequence[int]) -> list[int]:  # noqa: ARG002
        """Leave all flows to ECMP."""
        return self.route(flows)

    def release(self, flows: Sequence[str]) -> None:
        """Do nothing: no paths are reserved."""
