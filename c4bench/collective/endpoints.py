"""The two ends of a directed connection between ranks: the outlet writes, the inlet grants and receives.

The receiver drives: the outlet may write a message only when it has the data *and* a grant for it. A grant is a limit
on the message's index within the operation, as a TCP window is, and says where the bytes may go. Receives are posted
for every message that can be granted, so the transport's receiver-not-ready path is never taken. Messages spread over
several QPs may overtake each other; they are used in order.
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
INLET_RECEIVES = MAX_SLOTS + DIRECT_WINDOW


class Message(NamedTuple):
    """What an outlet is to write: local address and key, length, and the place in the receiver's array.

    It may go once `needs` messages of its lane have arrived.
    """

    address: int
    lkey: int
    length: int
    offset: int
    staged: bool
    needs: int


class Arrival(NamedTuple):
    """What an inlet is to receive. `apply(into, staged)` reduces; None means that the bytes are already in place."""

    into: Array
    apply: Reduction | None


class Staging(NamedTuple):
    """How an operation cuts the staging memory: both ends derive it from the operation's size."""

    slots: int
    slot_bytes: int


def cut_staging(staging_bytes: int, message_bytes: int) -> Staging:
    """As many slots of the longest message as fit, on 64-byte boundaries."""
    slot_bytes = max(64, -(-message_bytes // 64) * 64)
    return Staging(min(MAX_SLOTS, staging_bytes // slot_bytes), slot_bytes)


class SendEndpoint(ABC):
    """The sending end towards `peer` on one channel."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self._early: list[Grant] = []
        self._staging = Staging(1, 0)
        self._grant: Grant | None = None
        self._posted = 0
        self._total = 0

    def begin(self, seq: int, total: int, staging: Staging) -> list[Grant]:
        """Start operation `seq` with `total` messages; returns the grants that came before it."""
        early = [grant for grant in self._early if grant.seq == seq]
        self._early = [grant for grant in self._early if grant.seq != seq]
        self._staging = staging
        self._grant = None
        self._posted = 0
        self._total = total
        return early

    def keep(self, grant: Grant) -> None:
        """Keep a grant for an operation this rank has not entered yet."""
        self._early.append(grant)

    def accept(self, grant: Grant) -> None:
        """Take a grant for the running operation."""
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
        """Write the next message; the caller has checked `has_credit`."""
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
        """Share the load from now on as `weights` say, one for each QP; 0 spares one. ValueError when all are 0."""

    @abstractmethod
    def move(self, qp_index: int, source_port: int) -> None:
        """Have one QP take another path; nothing may be outstanding."""

    @abstractmethod
    def acknowledged(self, qp: int, now_ns: int) -> int | None:
        """The oldest message on a QP has reached the peer's memory; returns the ns it took, if posted once."""

    @abstractmethod
    def settle(self, waiting_for: str, now_ns: int) -> None:
        """Record the state after a wake-up: `waiting_for` holds back the next message where nothing is in flight."""


def check_weights(weights: Sequence[float], count: int) -> None:
    """ValueError unless these are weights for `count` QPs."""
    if len(weights) != count or min(weights) < 0 or not any(weights):
        raise ValueError(f"{list(weights)} are not {count} weights of 0 or more, one of them positive")


class ReceiveEndpoint(ABC):
    """The receiving end from `peer` on one channel. `staging` is the memory that messages to be reduced come to."""

    def __init__(self, peer: int, staging: NDArray[np.uint8] | None) -> None:
        self.peer = peer
        self._memory = staging
        self._granted = 0
        self._consumed = 0
        self._total = 0
        # Taken from the front, so that a finished operation leaves no reference to the user's array.
        self._arrivals: deque[Arrival] = deque()
        # Indices that have overtaken an earlier message, which came on another QP.
        self._ahead: set[int] = set()
        self._staged = 0
        self._staging = Staging(1, 0)
        self._template = Grant(0, 0, 0, 0, Signature("barrier", "", "", 0, 0))

    def begin(self, template: Grant, arrivals: list[Arrival], staging: Staging) -> None:
        """Start an operation with these arrivals and grant its first messages as `template` says."""
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
        """A message has come on a QP: how many can be used now, in order; None when this one was never granted."""

    @abstractmethod
    def publish(self) -> None:
        """Store what has been counted."""

    @abstractmethod
    def _send_grant(self, grant: Grant) -> None:
        """Have the peer know."""

    def _take(self, index: int) -> int:
        """Message `index` is in memory: use it, and what has waited for it, in order; returns how many."""
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
        found: Array = self._memory[start : start + like.nbytes].view(like.dtype)
        return found

    def _allowed(self) -> int:
        if self._consumed + self._staging.slots < self._staged:
            return self._consumed + self._staging.slots
        return min(self._total, max(self._staged, self._consumed + DIRECT_WINDOW))

    def _grant(self) -> None:
        """Grant what has become free, in batches of half the slots: fewer messages, and the sender never runs dry."""
        allowed = self._allowed()
        batch = max(1, self._staging.slots // 2) if self._consumed < self._staged else DIRECT_WINDOW // 2
        if allowed <= self._granted or (allowed - self._granted < batch and allowed < self._total):
            return
        self._granted = allowed
        self._send_grant(self._template._replace(limit=allowed))
