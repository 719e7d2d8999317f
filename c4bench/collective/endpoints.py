"""The two endpoints of a directed connection between ranks, with credit-based flow control.

The sending endpoint writes a message only when it has the data *and* a grant for it. A grant is a limit on the
message's index within the operation, as a TCP window is, and says where the bytes go. Receives are posted for every
message that can be granted, so receiver-not-ready NAKs never occur. Messages on several QPs may overtake each other;
they are used in order.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from c4bench.collective.arrays import Reduction
from c4bench.collective.handshake import Grant, Signature
from c4bench.collective.memory import Array

MAX_SLOTS = 64
DIRECT_WINDOW = 64
RECEIVE_DEPTH = MAX_SLOTS + DIRECT_WINDOW


class Message(NamedTuple):
    """A message to write: local address and key, length and offset in the receiver's array, in bytes.

    It may be sent once `needs` messages of its transfer have arrived.
    """

    address: int
    lkey: int
    length: int
    offset: int
    staged: bool
    needs: int


class Arrival(NamedTuple):
    """A message to receive. `apply(into, staged)` reduces it; None if the bytes are written straight to `into`."""

    into: Array
    apply: Reduction | None


class Staging(NamedTuple):
    """How an operation divides the staging memory; both endpoints derive it from the operation's size."""

    slots: int
    slot_bytes: int


def cut_staging(staging_bytes: int, message_bytes: int) -> Staging:
    """As many slots as fit, each as long as the longest message, on 64-byte boundaries."""
    slot_bytes = max(64, -(-message_bytes // 64) * 64)
    return Staging(min(MAX_SLOTS, staging_bytes // slot_bytes), slot_bytes)


class SendEndpoint(ABC):
    """The sending endpoint to `peer` on one channel."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self._early: list[Grant] = []
        self._staging = Staging(1, 0)
        self._grant: Grant | None = None
        self._posted = 0
        self._total = 0

    def begin(self, seq: int, total: int, staging: Staging) -> list[Grant]:
        """Start operation `seq` with `total` messages; returns the grants that arrived before it started."""
        early = [grant for grant in self._early if grant.seq == seq]
        self._early = [grant for grant in self._early if grant.seq != seq]
        self._staging = staging
        self._grant = None
        self._posted = 0
        self._total = total
        return early

    def keep(self, grant: Grant) -> None:
        """Keep a grant for an operation that this rank has not started yet."""
        self._early.append(grant)

    def accept(self, grant: Grant) -> None:
        """Apply a grant for the running operation."""
        self._grant = grant

    @property
    def granted(self) -> bool:
        """Whether the peer has granted anything in this operation."""
        return self._grant is not None

    @property
    def has_credit(self) -> bool:
        """Whether the next message may be written."""
        return self._grant is not None and self._posted < self._grant.limit

    def write(self, message: Message, seq: int, now_ns: int) -> None:
        """Write the next message. The caller must have checked `has_credit`."""
        self._send(message, self._posted, seq, now_ns)
        self._posted += 1

    @property
    @abstractmethod
    def outstanding(self) -> int:
        """Messages written and not acknowledged."""

    @abstractmethod
    def _send(self, message: Message, index: int, seq: int, now_ns: int) -> None:
        """Write message `index` of operation `seq`."""

    @abstractmethod
    def weigh(self, weights: Sequence[float]) -> None:
        """Share the load by `weights`, one for each QP; 0 leaves a QP unused. Raises ValueError when all are 0."""

    @abstractmethod
    def move(self, qp_index: int, source_port: int) -> None:
        """Move one QP to another path. Nothing may be outstanding."""

    @abstractmethod
    def acknowledged(self, qp: int, now_ns: int) -> int | None:
        """The oldest message on a QP is acknowledged; returns its latency in ns, None if it may have been resent."""

    @abstractmethod
    def record_state(self, waiting_for: str, now_ns: int) -> None:
        """Record the state after a wake-up; if nothing is in flight it is `waiting_for` (see ChannelTransfer)."""


def check_weights(weights: Sequence[float], count: int) -> None:
    """Raises ValueError unless these are weights for `count` QPs."""
    if len(weights) != count or min(weights) < 0 or not any(weights):
        raise ValueError(f"{list(weights)} are not {count} weights of 0 or more, one of them positive")


class ReceiveEndpoint(ABC):
    """The receiving endpoint from `peer` on one channel. Messages to be reduced are written to `staging`."""

    def __init__(self, peer: int, staging: NDArray[np.uint8] | None) -> None:
        self.peer = peer
        self._memory = staging
        self._granted = 0
        self._consumed = 0
        self._total = 0
        # Removed once used, so that a finished operation keeps no reference to the user's array.
        self._arrivals: deque[Arrival] = deque()
        # Indices of messages that have overtaken an earlier one on another QP.
        self._ahead: set[int] = set()
        self._staged = 0
        self._staging = Staging(1, 0)
        self._template = Grant(0, 0, 0, 0, Signature("barrier", "", "", 0, 0))

    def begin(self, template: Grant, arrivals: list[Arrival], staging: Staging) -> None:
        """Start an operation with these arrivals and grant its first messages, like `template`."""
        self._template = template
        self._arrivals = deque(arrivals)
        self._total = len(arrivals)
        self._staging = staging
        self._staged = sum(arrival.apply is not None for arrival in arrivals)
        self._granted = 0
        self._consumed = 0
        self._grant()

    @property
    def complete(self) -> bool:
        """Whether everything has arrived."""
        return self._consumed == self._total

    @abstractmethod
    def arrived(self, qp: int, immediate: int, now_ns: int) -> int | None:
        """A message arrived on a QP: how many can be used now, in order; None if this one was not granted."""

    @abstractmethod
    def publish(self) -> None:
        """Publish the counters to the telemetry file."""

    @abstractmethod
    def _send_grant(self, grant: Grant) -> None:
        """Send a grant to the peer."""

    def _consume(self, index: int) -> int:
        """Use message `index` and those that have waited for it, in order; returns how many."""
        self._ahead.add(index)
        used = 0
        while self._consumed in self._ahead:
            self._ahead.remove(self._consumed)
            self._use()
            used += 1
        if used:
            self._grant()
        return used

    def _use(self) -> None:
        into, apply = self._arrivals.popleft()
        if apply is not None:
            apply(into, self._slot(self._consumed, into))
        self._consumed += 1

    def _slot(self, index: int, like: Array) -> Array:
        assert self._memory is not None
        start = index % self._staging.slots * self._staging.slot_bytes
        slot: Array = self._memory[start : start + like.nbytes].view(like.dtype)
        return slot

    def _allowed(self) -> int:
        if self._consumed + self._staging.slots < self._staged:
            return self._consumed + self._staging.slots
        return min(self._total, max(self._staged, self._consumed + DIRECT_WINDOW))

    def _grant(self) -> None:
        """Grant free slots in batches of half of them: few messages, and the sender does not run out of credit."""
        allowed = self._allowed()
        batch = max(1, self._staging.slots // 2) if self._consumed < self._staged else DIRECT_WINDOW // 2
        if allowed <= self._granted or (allowed - self._granted < batch and allowed < self._total):
            return
        self._granted = allowed
        self._send_grant(self._template._replace(limit=allowed))
