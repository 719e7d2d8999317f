"""The sending endpoint of a channel, and failover: other NICs carry its messages when its own is lost."""

import struct
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from c4bench.collective.endpoints import Message, Staging, check_weights
from c4bench.collective.handshake import GRANT_BYTES, MAILBOX_SLOTS, Grant, unpack_grant
from c4bench.collective.memory import Buffer
from c4bench.collective.resilient.hello import FarReceiving
from c4bench.collective.resilient.keys import Keyring
from c4bench.collective.resilient.mailbox import CONTROL_CHANNEL
from c4bench.collective.resilient.rail import ResendingEndpoint, SendingRail, Sent

Item = TypeVar("Item", bound=Hashable)

MAX_CHANNELS = CONTROL_CHANNEL
# An immediate holds the channel, the operation's number and the message's index, the last two modulo the field's size.
CHANNEL_SHIFT, SEQ_SHIFT = 28, 18
SEQ_MASK, INDEX_MASK = 0x3FF, (1 << SEQ_SHIFT) - 1
PLACE = struct.Struct("<QI")
SLOT_BYTES = GRANT_BYTES + MAX_CHANNELS * 16
CHANNEL_MAILBOX_BYTES = SLOT_BYTES * MAILBOX_SLOTS


class WeightedRoundRobin(Generic[Item]):
    """Items share a load in proportion to weights: the one furthest behind its share is next."""

    def __init__(self) -> None:
        self._carried: dict[Item, float] = {}

    def choose(self, weights: Mapping[Item, float], length: int) -> Item:
        """The item to carry `length` bytes, among those with weights, none of which may be 0."""
        if weights.keys() != self._carried.keys():
            self._carried = dict.fromkeys(weights, 0.0)
        chosen = min(weights, key=lambda item: (self._carried[item] + length) / weights[item])
        self._carried[chosen] += length
        return chosen


class ChannelFailover:
    """The channels to a peer, which carry each other's messages when NICs are lost.

    When a channel in use has lost its NIC, all channels share the remaining NICs by rate. If only the lost NIC's load
    were shared, some NICs would finish early and idle. Without `spread` the next usable channel carries the whole load.
    """

    def __init__(self, *, spread: bool) -> None:
        self.senders: list[RailSendEndpoint] = []
        self._spread = spread
        self._round_robin: WeightedRoundRobin[RailSendEndpoint] = WeightedRoundRobin()

    def carrier(self, sender: "RailSendEndpoint", length: int) -> "RailSendEndpoint":
        """The channel whose NIC carries a message of `sender`. At least one must be usable."""
        able = [each for each in self.senders if each.able]
        if not self._spread:
            return min(able, key=lambda each: (each.channel - sender.channel) % len(self.senders))
        if len(able) == len(self.senders) or not any(each.stranded for each in self.senders):
            return sender
        return self._round_robin.choose({each: each.rate_bps for each in able}, length)


class RailSendEndpoint(ResendingEndpoint):
    """The sending endpoint to `peer` on channel `channel`."""

    def __init__(
        self,
        peer: int,
        channel: int,
        rails: list[SendingRail],
        mailbox: Buffer,
        far: FarReceiving,
        keys: Keyring,
        staging_bytes: int,
        pool: ChannelFailover,
    ) -> None:
        super().__init__(peer)
        self._pool = pool
        pool.senders.append(self)
        self.channel = channel
        self.rails = rails
        self.own = [rail for rail in rails if rail.nic == channel]
        self._mailbox = mailbox
        self._far = far
        self._keys = keys
        self._far_staging = far.staging + channel * staging_bytes
        self._weights = dict.fromkeys(self.own, 1.0)
        self._round_robin = WeightedRoundRobin[SendingRail]()
        self._targets: dict[int, list[tuple[int, int]]] = {}
        self._seq = -1
        self._unacknowledged = 0

    def begin(self, seq: int, total: int, staging: Staging) -> list[Grant]:
        """See SendEndpoint."""
        self._seq = seq
        self._targets = {at: places for at, places in self._targets.items() if at >= seq}
        return super().begin(seq, total, staging)

    def read_grant(self, slot: int) -> Grant:
        """The grant that has just arrived in mailbox `slot`."""
        at = self.channel * CHANNEL_MAILBOX_BYTES + slot * SLOT_BYTES
        view = self._mailbox.view[at : at + SLOT_BYTES]
        grant = unpack_grant(view, 0)
        count = 1 + max(rail.nic for rail in self.rails)
        self._targets[grant.seq] = [PLACE.unpack_from(view, GRANT_BYTES + nic * PLACE.size) for nic in range(count)]
        return grant

    def keep(self, grant: Grant) -> None:
        """See SendEndpoint. A repeated grant of an earlier operation is dropped."""
        if grant.seq > self._seq:
            super().keep(grant)

    def accept(self, grant: Grant) -> None:
        """See SendEndpoint. Grants may overtake each other on different rails."""
        if self._grant is None or grant.limit > self._grant.limit:
            super().accept(grant)

    @property
    def has_credit(self) -> bool:
        """See SendEndpoint. There is no credit without a rail."""
        return super().has_credit and any(rail.usable for rail in self.rails)

    @property
    def needed(self) -> bool:
        """Whether the running operation has messages that are not acknowledged."""
        return self._posted < self._total or self._unacknowledged > 0

    @property
    def outstanding(self) -> int:
        """See SendEndpoint."""
        return self._unacknowledged

    def _send(self, message: Message, index: int, seq: int, now_ns: int) -> None:
        self._unacknowledged += 1
        self._write(Sent(self, message, seq, index), now_ns)

    def resend(self, sent: Sent, now_ns: int) -> bool:
        """See ResendingEndpoint."""
        if not any(rail.usable for rail in self.rails):
            return False
        self._write(sent, now_ns)
        return True

    def _write(self, sent: Sent, now_ns: int) -> None:
        message = sent.message
        rail = self._pool.carrier(self, message.length).own_rail(message.length)
        if message.staged:
            at = self._far_staging + sent.number % self._staging.slots * self._staging.slot_bytes
            remote = (at, self._far.staging_rkeys[rail.nic])
        else:
            address, rkey = self._targets[sent.seq][rail.nic]
            remote = (address + message.offset, rkey)
        local = self._keys.local(message.lkey, rail.nic, message.address)
        immediate = self.channel << CHANNEL_SHIFT | (sent.seq & SEQ_MASK) << SEQ_SHIFT | sent.number & INDEX_MASK
        rail.write(sent, local, remote, immediate, now_ns)

    @property
    def able(self) -> bool:
        """Whether a rail of its own NIC is up."""
        return any(rail.usable for rail in self.own)

    @property
    def stranded(self) -> bool:
        """Whether the running operation uses this channel and its NIC is lost."""
        return self._total > 0 and not self.able

    @property
    def rate_bps(self) -> float:
        """The rate of its own NIC."""
        return self.own[0].rate_bps

    def own_rail(self, length: int) -> SendingRail:
        """The rail of its own NIC for the next message; one with weight 0 only if there is no other."""
        usable = [rail for rail in self.own if rail.usable]
        if len(usable) == 1:
            return usable[0]
        weights = {rail: self._weights[rail] for rail in usable if self._weights[rail]}
        return self._round_robin.choose(weights or dict.fromkeys(usable, 1.0), length)

    def weigh(self, weights: Sequence[float]) -> None:
        """See SendEndpoint. The weights are those of the rails of the channel's own NIC."""
        check_weights(weights, len(self.own))
        self._weights = dict(zip(self.own, weights, strict=True))
        self._round_robin = WeightedRoundRobin()

    def move(self, qp_index: int, source_port: int) -> None:
        """See SendEndpoint. A rail that is down uses the path when it comes back."""
        self.own[qp_index].move(source_port)

    def acknowledged(self, qp: int, now_ns: int) -> None:  # noqa: ARG002  (the rail has counted it)
        """See SendEndpoint."""
        self._unacknowledged -= 1

    def record_state(self, waiting_for: str, now_ns: int) -> None:
        """See SendEndpoint."""
        owed = self._total - self._posted
        for rail in self.rails:
            if rail.nic == self.channel and rail.usable:
                state = "transfer" if rail.in_flight else waiting_for
                rail.record.set_state(state, rail.in_flight, owed, now_ns)
            elif rail.in_flight or rail.record.outstanding or not rail.usable:
                rail.record.set_state("transfer" if rail.in_flight else "idle", rail.in_flight, 0, now_ns)
