"""The two endpoints of a directed connection between ranks, with credit-based flow control.

The sending endpoint writes a message only when it has the data *and* a grant for it. A grant is a limit on the
message's index within the operation, as a TCP window is, and says where the bytes go. Receives are posted for every
message that can be granted, so receiver-not-ready NAKs never occur. Messages on several QPs may overtake each other;
they are used in order.

A channel has its own NIC, whose QPs share its load by weight. With resilience the endpoints of an edge also use each
other's NICs when one is lost (`ChannelFailover`).
"""

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from c4bench.collective.arrays import Reduction
from c4bench.collective.handshake import (
    CONGESTION_NOTICE,
    MAILBOX_SLOTS,
    OWN_QPS,
    SHARED_QPS,
    SLOT_BYTES,
    Grant,
    ReceivingEnd,
    SendingEnd,
    Signature,
    pack_grant,
    unpack_grant,
)
from c4bench.collective.memory import Array, ChannelMemory
from c4bench.collective.rail import InFlight, Message, ReceiveProgress, ReceivingRail, SendingRail
from c4bench.collective.schedule import ARRIVALS, Gate
from c4bench.verbs.counters import MarkedPackets

Item = TypeVar("Item", bound=Hashable)

MAX_SLOTS = 64
DIRECT_WINDOW = 64
RECEIVE_DEPTH = MAX_SLOTS + DIRECT_WINDOW
# A QP lags if it has so many times as much in flight for its share as another would have with one message more.
_LAG = 2
# A receiver sends a notice at most this often (DCQCN's N; Zhu et al., SIGCOMM 2015, 3.1, "NP Algorithm").
_NOTICE_EVERY_NS = 50_000


# How many arrivals of an operation have been used, by gate.
GateCounts = Counter[Gate]


class Arrival(NamedTuple):
    """A message to receive. `apply(into, bytes)` reduces it; None if the bytes are written straight to `into`.

    Bytes to be reduced are in the staging memory, or `written` elsewhere. The message is used once `needs` others have
    passed the gate `after`, and passes `gate` itself.
    """

    into: Array
    apply: Reduction | None
    written: Array | None = None
    gate: Gate = ARRIVALS
    after: Gate = ARRIVALS
    needs: int = 0


class Staging(NamedTuple):
    """How an operation divides the staging memory; both endpoints derive it from the operation's size."""

    slots: int
    slot_bytes: int


def cut_staging(staging_bytes: int, message_bytes: int) -> Staging:
    """As many slots as fit, each as long as the longest message, on 64-byte boundaries."""
    slot_bytes = max(64, -(-message_bytes // 64) * 64)
    return Staging(min(MAX_SLOTS, staging_bytes // slot_bytes), slot_bytes)


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
        self.senders: list[SendEndpoint] = []
        self._spread = spread
        self._round_robin: WeightedRoundRobin[SendEndpoint] = WeightedRoundRobin()

    def carrier(self, sender: "SendEndpoint", length: int) -> "SendEndpoint":
        """The channel whose NIC carries a message of `sender`. At least one must be usable."""
        able = [each for each in self.senders if each.able]
        if not self._spread:
            return min(able, key=lambda each: (each.channel - sender.channel) % len(self.senders))
        if len(able) == len(self.senders) or not any(each.stranded for each in self.senders):
            return sender
        return self._round_robin.choose({each: each.rate_bps for each in able}, length)


class SendEndpoint:
    """The sending endpoint to `peer` on one channel, with the rails that it may use and the receiver's ends of them.

    Without `failover` it uses the QPs of its own NIC only, and nobody else does.
    """

    def __init__(
        self,
        peer: int,
        channel: int,
        rails: list[SendingRail],
        mailbox: ChannelMemory | None,
        far: Mapping[int, ReceivingEnd],
        failover: ChannelFailover | None = None,
    ) -> None:
        self.peer, self.channel = peer, channel
        self.own = [rail for rail in rails if rail.nic == channel]
        self.rails = rails if failover else self.own
        self._mailbox, self._far = mailbox, far
        self._failover = failover
        self._immediates = SHARED_QPS if failover else OWN_QPS
        # The NICs by which messages may leave.
        self.nics = tuple(dict.fromkeys(rail.nic for rail in self.rails))
        if failover:
            failover.senders.append(self)
        self.weights = dict.fromkeys(self.own, 1.0)
        self._round_robin = WeightedRoundRobin[SendingRail]()
        self._hands_over = False
        self._early: list[Grant] = []
        self._staging = Staging(1, 0)
        self._grant: Grant | None = None
        self._seq = -1
        self._posted = self._total = 0
        self.outstanding = 0

    def begin(self, seq: int, total: int, staging: Staging) -> list[Grant]:
        """Start operation `seq` with `total` messages; returns the grants that arrived before it started."""
        early = [grant for grant in self._early if grant.seq == seq]
        self._early = [grant for grant in self._early if grant.seq != seq]
        self._seq = seq
        self._staging = staging
        self._grant = None
        self._posted = 0
        self._total = total
        self._hands_over = False
        return early

    def read_grant(self, slot: int) -> Grant:
        """The grant that has just arrived in mailbox `slot`."""
        assert self._mailbox
        return unpack_grant(self._mailbox.view[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES], len(self.nics))

    def keep(self, grant: Grant) -> None:
        """Keep a grant for an operation that this rank has not started yet. A repeated one of an earlier is dropped."""
        if grant.seq > self._seq:
            self._early.append(grant)

    def accept(self, grant: Grant) -> None:
        """Apply a grant for the running operation. Grants may overtake each other on different rails."""
        if self._grant is None or grant.limit > self._grant.limit:
            self._grant = grant

    @property
    def granted(self) -> bool:
        """Whether the peer has granted anything in this operation."""
        return self._grant is not None

    @property
    def has_credit(self) -> bool:
        """Whether the next message may be written. There is no credit without a rail."""
        return self._grant is not None and self._posted < self._grant.limit and self._reaches

    @property
    def _reaches(self) -> bool:
        """Whether any rail is up; without failover, an operation ends with its first rail."""
        return self._failover is None or any(rail.usable for rail in self.rails)

    @property
    def needed(self) -> bool:
        """Whether the running operation has messages that are not acknowledged."""
        return self._posted < self._total or self.outstanding > 0

    def write(self, message: Message, seq: int, now_ns: int) -> None:
        """Write the next message. The caller must have checked `has_credit`."""
        self.outstanding += 1
        self._write(InFlight(self.channel, message, seq, self._posted, now_ns))
        self._posted += 1

    def resend(self, sent: InFlight, now_ns: int) -> bool:
        """Send a message again that was lost with its rail; False if no rail is up."""
        if not self._reaches:
            return False
        self._write(sent._replace(posted_ns=now_ns))
        return True

    def _write(self, sent: InFlight) -> None:
        message = sent.message
        assert self._grant is not None
        carrier = self._failover.carrier(self, message.length) if self._failover else self
        rail = carrier.own_rail(message.length)
        nic = rail.nic
        if message.staged:
            start = sent.number % self._staging.slots * self._staging.slot_bytes
            remote = (self._far[self.channel].staging + start, self._far[nic].staging_rkey)
        else:
            address, rkey = self._grant.places[self.nics.index(nic)]
            remote = (address + message.offset, rkey)
        source = message.source[nic]
        immediate = self._immediates.data(self.channel, sent.seq, sent.number)
        rail.write(sent, (source.address + message.start, source.lkey), remote, immediate, sent.posted_ns)

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

    @property
    def paths(self) -> int:
        """How many paths the plan has its messages on: QPs on the same path have the same source port."""
        return len({rail.source_port for rail in self.own if self.weights[rail]})

    def own_rail(self, length: int) -> SendingRail:
        """The rail of its own NIC for the next message; one with weight 0 only if there is no other.

        Rails carry by their weights, as planned. Once one lags, its path is slower than the plan has it, and each
        further message of the operation goes by the rail on which it is likely to be acknowledged first.
        """
        if len(self.own) == 1:
            return self.own[0]
        usable = [rail for rail in self.own if rail.usable]
        if len(usable) == 1:
            return usable[0]
        weights = {rail: self.weights[rail] for rail in usable if self.weights[rail]} or dict.fromkeys(usable, 1.0)
        chosen = self._round_robin.choose(weights, length)
        filled = {rail: (rail.in_flight + 1) / weight for rail, weight in weights.items()}
        # A single message of a small share is more than that share.
        lags = chosen.in_flight > 1 and chosen.in_flight / weights[chosen] > _LAG * min(filled.values())
        self._hands_over = self._hands_over or lags
        return min(weights, key=lambda rail: (rail.next_takes_ns, filled[rail])) if self._hands_over else chosen

    def weigh(self, weights: Sequence[float]) -> None:
        """Share the load of the own NIC by `weights`, one for each QP; 0 leaves a QP unused.

        Raises ValueError for others than as many weights of 0 or more, one of them positive.
        """
        if len(weights) != len(self.own) or min(weights) < 0 or not any(weights):
            raise ValueError(f"{list(weights)} are not {len(self.own)} weights of 0 or more, one of them positive")
        self.weights = dict(zip(self.own, weights, strict=True))
        self._round_robin = WeightedRoundRobin()

    def move(self, qp_index: int, source_port: int) -> None:
        """Move one QP to another path. Nothing may be outstanding. One that is down uses it when it comes back."""
        self.own[qp_index].move(source_port)

    def acknowledged(self) -> None:
        """One of its messages is acknowledged."""
        self.outstanding -= 1

    def record_state(self, waiting_for: str, now_ns: int) -> None:
        """Record the state after a wake-up; if nothing is in flight it is `waiting_for` (see ChannelTransfer)."""
        owed = self._total - self._posted
        for rail in self.rails:
            if rail.nic == self.channel and rail.usable:
                rail.record.set_state("transfer" if rail.in_flight else waiting_for, rail.in_flight, owed, now_ns)
            elif rail.in_flight or rail.record.outstanding or not rail.usable:
                rail.record.set_state("transfer" if rail.in_flight else "idle", rail.in_flight, 0, now_ns)


class ReceiveEndpoint:
    """The receiving endpoint from `peer` on one channel. Messages to be reduced are written to `staging`.

    Messages arrive by any of the rails, and grants return by any. With `resends`, a message may come twice: `repeated`
    counts these. With `marks` the endpoint notifies the sender when packets came marked.
    """

    def __init__(
        self,
        peer: int,
        channel: int,
        rails: list[ReceivingRail],
        outbox: ChannelMemory | None,
        staging: ChannelMemory | None,
        far: Mapping[int, SendingEnd],
        *,
        resends: bool = False,
        marks: MarkedPackets | None = None,
    ) -> None:
        self.peer, self.channel = peer, channel
        self.repeated = 0
        self.rails = rails if resends else [rail for rail in rails if rail.nic == channel]
        # The NICs by which messages may come.
        self.nics = tuple(dict.fromkeys(rail.nic for rail in self.rails))
        self._outbox, self._memory, self._far = outbox, staging, far
        self._resends = resends
        self._immediates = SHARED_QPS if resends else OWN_QPS
        self._grants = 0
        self._grant_pending = False
        self._marks = marks
        self._marked = marks.count() if marks else None
        self._noticed_ns = 0
        self._granted = 0
        self._consumed = 0
        self._total = 0
        # Removed once used, so that a finished operation keeps no reference to the user's array.
        self._arrivals: deque[Arrival] = deque()
        # Indices of messages that have arrived and cannot be used yet, such as those that overtook one on another QP.
        self._ahead: set[int] = set()
        self._passed = GateCounts()
        # How many messages there are up to the last one that is staged.
        self._staged = 0
        self._staging = Staging(1, 0)
        self._template = Grant(0, 0, (), Signature("barrier", "", "", 0, 0))

    def begin(self, template: Grant, arrivals: list[Arrival], staging: Staging, passed: GateCounts) -> None:
        """Start an operation with these arrivals and grant its first messages, like `template`.

        `passed` are the operation's counts on this channel, which arrivals add to.
        """
        self._template = template
        self._arrivals = deque(arrivals)
        self._total = len(arrivals)
        self._staging = staging
        self._passed = passed
        self._staged = self._needing_slots(arrivals)
        self._granted = 0
        self._consumed = 0
        self._grant()

    def _needing_slots(self, arrivals: Sequence[Arrival]) -> int:
        """How many messages there are up to the last one that comes by a slot."""
        staged = [arrival.apply is not None and arrival.written is None for arrival in arrivals]
        return max((number for number, each in enumerate(staged, 1) if each), default=0)

    @property
    def complete(self) -> bool:
        """Whether everything has arrived."""
        return self._consumed == self._total

    def arrived(self, immediate: int, now_ns: int) -> bool:
        """A message arrived: use what can be used now, in order; False if this one was not granted."""
        index = self._immediates.index_after(self._consumed, immediate)
        repeated = index - self._consumed > self._immediates.index_mask // 2 or index in self._ahead
        current = self._immediates.is_of(self._template.seq, immediate)
        if current and repeated and self._resends:
            self.repeated += 1
            return True
        if not current or repeated or index >= self._granted:
            return False
        if self._marks:
            self._notify(self._marks, now_ns)
        self._ahead.add(index)
        self.use_arrived()
        return True

    def _notify(self, marks: MarkedPackets, now_ns: int) -> None:
        """Notify the sender if packets have come marked since the last notice; whoever sent them to this host."""
        marked = marks.count()
        if marked == self._marked or now_ns - self._noticed_ns < _NOTICE_EVERY_NS:
            return
        self._marked, self._noticed_ns = marked, now_ns
        self._write(self.rails[0], 0, 0, CONGESTION_NOTICE)

    def progress(self) -> ReceiveProgress:
        """The messages received in the last operation."""
        return ReceiveProgress(self._template.seq, self._consumed, tuple(sorted(self._ahead)))

    def publish(self) -> None:
        """Publish the counters to the telemetry file."""
        for rail in self.rails:
            if rail.record.tally.count:
                rail.record.store()

    def resend_grant(self) -> None:
        """Send the last grant again by another rail, since it may have been lost with a rail."""
        if not self.complete:
            self._send_grant(self._template._replace(limit=self._granted))

    def send_pending_grant(self) -> None:
        """A rail is up again: send the grant that no rail could carry."""
        if self._grant_pending:
            self.resend_grant()

    def _send_grant(self, grant: Grant) -> None:
        rail = self._grant_rail()
        self._grant_pending = rail is None
        if rail is None:
            return
        slot = self._grants % MAILBOX_SLOTS
        self._grants += 1
        at = slot * SLOT_BYTES
        packed = pack_grant(grant)
        assert self._outbox
        self._outbox.view[at : at + len(packed)] = packed
        self._write(rail, at, len(packed), slot)

    def _grant_rail(self) -> ReceivingRail | None:
        """A rail of the channel's own NIC if one is up, else any."""
        usable = [rail for rail in self.rails if rail.usable]
        return next((rail for rail in usable if rail.nic == self.channel), usable[0] if usable else None)

    def _write(self, rail: ReceivingRail, at: int, length: int, slot: int) -> None:
        """Write a part of the outbox to the same place of the sender's mailbox."""
        assert self._outbox
        rail.write(
            (self._outbox.address + at, self._outbox.lkey(rail.nic)),
            (self._far[self.channel].mailbox + at, self._far[rail.nic].mailbox_rkey),
            length,
            self._immediates.slot(self.channel, slot),
        )

    def use_arrived(self) -> bool:
        """Use the next messages, in order, as far as they have arrived and need not wait; whether there were any."""
        before = self._consumed
        while self._consumed in self._ahead and self._passed[self._arrivals[0].after] >= self._arrivals[0].needs:
            self._ahead.remove(self._consumed)
            self._use()
        if self._consumed == before:
            return False
        self._grant()
        return True

    def _use(self) -> None:
        arrival = self._arrivals.popleft()
        landed = self._landed(arrival)
        if arrival.apply is not None:
            arrival.apply(arrival.into, landed)
        self._consumed += 1
        self._passed[arrival.gate] += 1

    def _landed(self, arrival: Arrival) -> Array:
        """The bytes of the next message, where they are."""
        if arrival.written is not None:
            return arrival.written
        return arrival.into if arrival.apply is None else self._slot(self._consumed, arrival.into)

    def _slot(self, index: int, like: Array) -> Array:
        assert self._memory is not None
        start = index % self._staging.slots * self._staging.slot_bytes
        slot: Array = self._memory.bytes[start : start + like.nbytes].view(like.dtype)
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
