"""How the ranks of a job find each other and learn their paths; the control plane provides it."""

from collections.abc import Sequence
from typing import Protocol

from c4bench.model.fabric import Flow


class Rendezvous(Protocol):
    """What a communicator asks of the control plane."""

    def exchange(self, key: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
        """Give `payload`, block until all `size` ranks gave theirs under `key`, and return them by rank.

        Raises CollectiveError that names the missing ranks after `timeout_s`. A key is used once.
        """

    def route(self, flows: Sequence[Flow]) -> list[int]:
        """C4P's answer: a UDP source port for each flow, in order; 0 leaves a flow to ECMP."""

    def release(self, flows: Sequence[str]) -> None:
        """These routed flows, named by id, are gone; their share of the fabric is free."""
