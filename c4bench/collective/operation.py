"""A running collective on one rank: its lanes, who is awaited, and its record."""

from collections.abc import Iterable, Iterator

from c4bench.collective.channel_transfer import ChannelTransfer
from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.errors import CollectiveError
from c4bench.collective.handshake import Grant, Signature
from c4bench.collective.recorder import OpWriter
from c4bench.model.telemetry import Failure


class Operation:
    """Turns completions into progress. It blocks nowhere: the engine feeds it and asks whether it is `done`."""

    def __init__(
        self, comm: str, rank: int, signature: Signature, lanes: list[ChannelTransfer], record: OpWriter
    ) -> None:
        self.comm = comm
        self.rank = rank
        self.seq = record.seq
        self.signature = signature
        self.record = record
        self._lanes = lanes
        self._lane_of: dict[SendEndpoint | ReceiveEndpoint, ChannelTransfer] = {}
        self._dirty: set[SendEndpoint] = set()
        self._incomplete: dict[int, int] = {}

    def begin(self, outlets: Iterable[SendEndpoint], now_ns: int) -> None:
        """Grant the first messages, take the grants that came early, and send what needs neither.

        `outlets` are all of the communicator's, since a grant on one that this operation does not use shows a mismatch.
        """
        totals: dict[SendEndpoint, tuple[ChannelTransfer, int]] = {}
        for lane in self._lanes:
            totals.update((outlet, (lane, total)) for outlet, total in lane.totals().items())
            self._begin_inlets(lane)
        self._lane_of.update((outlet, lane) for outlet, (lane, _) in totals.items())
        self._dirty.update(totals)
        self.record.store()
        for outlet in outlets:
            lane, total = totals.get(outlet, (self._lanes[0], 0))
            for grant in outlet.begin(self.seq, total, lane.staging):
                self._accept(outlet, grant)
        self.advance(now_ns)

    def _begin_inlets(self, lane: ChannelTransfer) -> None:
        for inlet, arrivals in lane.arrivals.items():
            if arrivals:
                self._lane_of[inlet] = lane
                self._await(inlet.peer, 1)
                inlet.begin(Grant(self.seq, 0, *lane.targets[inlet], self.signature), arrivals, lane.staging)

    @property
    def done(self) -> bool:
        """Whether everything was sent, acknowledged and received."""
        return not self._incomplete and all(lane.sent for lane in self._lanes)

    @property
    def early_ns(self) -> int:
        """How long until a message that is held back for its lane's tempo may go; 0 where there is none."""
        return min((lane.early_ns for lane in self._lanes if lane.early_ns), default=0)

    def granted(self, outlet: SendEndpoint, grant: Grant) -> None:
        """A grant has come; one for a later operation is kept."""
        if grant.seq == self.seq:
            self._accept(outlet, grant)
        else:
            outlet.keep(grant)

    def _accept(self, outlet: SendEndpoint, grant: Grant) -> None:
        if grant.signature != self.signature:
            raise self.error(
                f"this rank is in `{self.signature}` and rank {outlet.peer} in `{grant.signature}`; "
                "every rank must call the same operations in the same order",
                peer=outlet.peer,
                status="MISMATCH",
            )
        outlet.accept(grant)

    def acknowledged(self, outlet: SendEndpoint, qp: int, now_ns: int) -> None:
        """The oldest message on an outlet's QP has arrived."""
        self._lane_of[outlet].acknowledged(outlet.acknowledged(qp, now_ns))
        self._dirty.add(outlet)

    def arrived(self, inlet: ReceiveEndpoint, qp: int, immediate: int, now_ns: int) -> None:
        """A message has arrived on an inlet's QP."""
        usable = inlet.arrived(qp, immediate, now_ns) if inlet in self._lane_of else None
        if usable is None:
            raise self.error(
                f"unexpected message {immediate:#x} from rank {inlet.peer}", peer=inlet.peer, status="MISMATCH"
            )
        self._lane_of[inlet].arrive(inlet, usable)
        self.record.start(now_ns)
        if inlet.complete:
            self._await(inlet.peer, -1)
            inlet.publish()
            self.record.store()

    def advance(self, now_ns: int) -> None:
        """After all completions of a wake-up: send what may be sent, and record where each connection stands."""
        for lane in self._lanes:
            written = lane.pump(self.seq, now_ns)
            if written:
                self.record.start(now_ns)
            self._dirty.update(written)
            if lane.head is not None:
                self._dirty.add(lane.head)
        for outlet in self._dirty:
            lane = self._lane_of[outlet]
            outlet.settle(lane.head_waits_for() if lane.head is outlet else "idle", now_ns)
        self._dirty.clear()

    def finish(self, now_ns: int) -> None:
        """Record that the operation returns."""
        self.record.finish(now_ns)

    def _await(self, peer: int, change: int) -> None:
        left = self._incomplete.get(peer, 0) + change
        if left:
            self._incomplete[peer] = left
        else:
            del self._incomplete[peer]
        self.record.awaiting(peer, still=bool(left))

    def _waits(self) -> Iterator[tuple[str, int]]:
        """Those first that have granted nothing: they have not come to this operation at all."""
        for lane in self._lanes:
            for outlet in lane.totals():
                if not outlet.granted:
                    yield "credit from", outlet.peer
            if lane.head is not None and lane.head_waits_for() == "credit":
                yield "credit from", lane.head.peer
        for peer in sorted(self._incomplete):
            yield "data from", peer
        for lane in self._lanes:
            for outlet in lane.totals():
                if outlet.outstanding:
                    yield "acknowledgement from", outlet.peer

    def waiting_for(self) -> tuple[str, int]:
        """What is waited for, in words, and the first rank of it."""
        waits = list(dict.fromkeys(self._waits()))
        return ", ".join(f"{what} rank {peer}" for what, peer in waits), waits[0][1]

    def timed_out(self, timeout_s: float) -> CollectiveError:
        """The error for an operation that did not finish in time."""
        text, peer = self.waiting_for()
        return self.error(f"no end after {timeout_s:g} s, waiting for {text}", peer=peer, status="TIMEOUT")

    def aborted(self, failure: Failure) -> CollectiveError:
        """The error for another rank's failure: that one's reason, and what is waited for here."""
        text, _ = self.waiting_for()
        message = f"rank {failure.rank} failed: {failure.reason} (waiting here for {text})"
        return self.error(message, peer=failure.rank, status="ABORTED")

    def error(self, message: str, *, peer: int = -1, status: str = "") -> CollectiveError:
        """A CollectiveError of this operation."""
        kind = self.signature.kind
        return CollectiveError(
            message, comm=self.comm, rank=self.rank, kind=kind, seq=self.seq, peer=peer, status=status
        )
