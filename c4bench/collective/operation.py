"""A running collective on one rank: its channel transfers, the ranks it waits for, and its record."""

from collections.abc import Iterable, Iterator

from c4bench.collective.channel_transfer import ChannelTransfer
from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.errors import CollectiveError
from c4bench.collective.handshake import Grant, Signature
from c4bench.collective.recorder import OpWriter
from c4bench.model.telemetry import Failure


class Operation:
    """Turns completions into progress and never blocks: the engine feeds it until it is `done`."""

    def __init__(
        self, comm: str, rank: int, signature: Signature, transfers: list[ChannelTransfer], record: OpWriter
    ) -> None:
        self.comm = comm
        self.rank = rank
        self.seq = record.seq
        self.signature = signature
        self.record = record
        self._transfers = transfers
        self._transfer_of: dict[SendEndpoint | ReceiveEndpoint, ChannelTransfer] = {}
        self._dirty: set[SendEndpoint] = set()
        self._receiving: set[ReceiveEndpoint] = set()
        self._incomplete: dict[int, int] = {}

    def begin(self, senders: Iterable[SendEndpoint], now_ns: int) -> None:
        """Grant the first messages, apply grants that arrived early, and send messages that have data and credit.

        `senders` are all of the communicator's, since a grant to one that this operation does not use is a mismatch.
        """
        totals: dict[SendEndpoint, tuple[ChannelTransfer, int]] = {}
        for transfer in self._transfers:
            totals.update((sender, (transfer, total)) for sender, total in transfer.totals().items())
            self._begin_receivers(transfer)
        self._transfer_of.update((sender, transfer) for sender, (transfer, _) in totals.items())
        self._dirty.update(totals)
        self.record.store()
        for sender in senders:
            transfer, total = totals.get(sender, (self._transfers[0], 0))
            for grant in sender.begin(self.seq, total, transfer.staging):
                self._accept(sender, grant)
        self.advance(now_ns)

    def _begin_receivers(self, transfer: ChannelTransfer) -> None:
        for receiver, arrivals in transfer.arrivals.items():
            if arrivals:
                self._transfer_of[receiver] = transfer
                self._receiving.add(receiver)
                self._count_incomplete(receiver.peer, 1)
                places = transfer.places_for(receiver)
                template = Grant(self.seq, 0, places, self.signature)
                receiver.begin(template, arrivals, transfer.staging, transfer.passed)

    @property
    def done(self) -> bool:
        """Whether everything was sent, acknowledged and received."""
        return not self._incomplete and all(transfer.sent for transfer in self._transfers)

    @property
    def pace_wait_ns(self) -> int:
        """How long until a pacer allows the next delayed message, in ns; 0 if none is delayed."""
        return min((transfer.pace_wait_ns for transfer in self._transfers if transfer.pace_wait_ns), default=0)

    def granted(self, sender: SendEndpoint, grant: Grant) -> None:
        """Apply a grant that has arrived; keep one for a later operation."""
        if grant.seq == self.seq:
            self._accept(sender, grant)
        else:
            sender.keep(grant)

    def _accept(self, sender: SendEndpoint, grant: Grant) -> None:
        if grant.signature != self.signature:
            raise self.error(
                f"this rank is in `{self.signature}` and rank {sender.peer} in `{grant.signature}`; "
                "every rank must call the same operations in the same order",
                peer=sender.peer,
                status="MISMATCH",
            )
        sender.accept(grant)

    def notified(self, sender: SendEndpoint, now_ns: int) -> None:
        """Packets came marked to the peer of `sender`; those of an earlier operation count as well."""
        if sender in self._transfer_of:
            self._transfer_of[sender].notified(now_ns)

    def acknowledged(self, sender: SendEndpoint, latency_ns: int | None) -> None:
        """A message of `sender` is acknowledged, so long after it was posted; None if it may have been resent."""
        sender.acknowledged()
        self._transfer_of[sender].acknowledged(sender, latency_ns)
        self._dirty.add(sender)

    def arrived(self, receiver: ReceiveEndpoint, immediate: int, now_ns: int) -> None:
        """A message has arrived at `receiver`. Raises CollectiveError MISMATCH for one that was not granted."""
        if receiver not in self._transfer_of or not receiver.arrived(immediate, now_ns):
            raise self.error(
                f"unexpected message {immediate:#x} from rank {receiver.peer}", peer=receiver.peer, status="MISMATCH"
            )
        self.record.start(now_ns)
        for used in dict.fromkeys((receiver, *self._transfer_of[receiver].use_waiting())):
            if used.complete and used in self._receiving:
                self._completed(used)

    def _completed(self, receiver: ReceiveEndpoint) -> None:
        self._receiving.remove(receiver)
        self._count_incomplete(receiver.peer, -1)
        receiver.publish()
        self.record.store()

    def advance(self, now_ns: int) -> None:
        """After all completions of a wake-up, send what may be sent and record each connection's state."""
        for transfer in self._transfers:
            written = transfer.pump(self.seq, now_ns)
            if written:
                self.record.start(now_ns)
            self._dirty.update(written)
            self._dirty.update(transfer.heads())
        for sender in self._dirty:
            sender.record_state(self._transfer_of[sender].waits_for(sender), now_ns)
        self._dirty.clear()

    def finish(self, now_ns: int) -> None:
        """Record the end of the operation."""
        self.record.finish(now_ns)

    def _count_incomplete(self, peer: int, change: int) -> None:
        left = self._incomplete.get(peer, 0) + change
        if left:
            self._incomplete[peer] = left
        else:
            del self._incomplete[peer]
        self.record.awaiting(peer, still=bool(left))

    def _pending_waits(self) -> Iterator[tuple[str, int]]:
        """What is waited for and from which rank; first the ranks without a grant, which have not entered yet."""
        for transfer in self._transfers:
            for sender in transfer.totals():
                if not sender.granted:
                    yield "credit from", sender.peer
            for sender in transfer.heads():
                if transfer.waits_for(sender) == "credit":
                    yield "credit from", sender.peer
        for peer in sorted(self._incomplete):
            yield "data from", peer
        for transfer in self._transfers:
            for sender in transfer.totals():
                if sender.outstanding:
                    yield "acknowledgement from", sender.peer

    def waiting_for(self) -> tuple[str, int]:
        """What is waited for as text, and the first rank of it."""
        waits = list(dict.fromkeys(self._pending_waits()))
        return ", ".join(f"{what} rank {peer}" for what, peer in waits), waits[0][1]

    def timed_out(self, timeout_s: float) -> CollectiveError:
        """The error for an operation that did not finish in time."""
        text, peer = self.waiting_for()
        return self.error(f"no end after {timeout_s:g} s, waiting for {text}", peer=peer, status="TIMEOUT")

    def aborted(self, failure: Failure) -> CollectiveError:
        """The error for another rank's failure: its reason, and what this rank waits for."""
        text, _ = self.waiting_for()
        message = f"rank {failure.rank} failed: {failure.reason} (waiting here for {text})"
        return self.error(message, peer=failure.rank, status="ABORTED", cause=failure.status)

    def error(self, message: str, *, peer: int = -1, status: str = "", cause: str = "") -> CollectiveError:
        """A CollectiveError of this operation."""
        kind = self.signature.kind
        return CollectiveError(
            message, comm=self.comm, rank=self.rank, kind=kind, seq=self.seq, peer=peer, status=status, cause=cause
        )
