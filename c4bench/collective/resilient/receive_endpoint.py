"""The receiving endpoint of a channel: messages arrive by any rail, and grants return by any."""

from c4bench.collective.endpoints import ReceiveEndpoint
from c4bench.collective.handshake import GRANT_BYTES, MAILBOX_SLOTS, Grant, pack_grant
from c4bench.collective.memory import Buffer
from c4bench.collective.resilient.hello import FarSending
from c4bench.collective.resilient.keys import Keyring
from c4bench.collective.resilient.messages import ReceiveProgress
from c4bench.collective.resilient.rail import ReceivingRail
from c4bench.collective.resilient.send_endpoint import (
    CHANNEL_MAILBOX_BYTES,
    INDEX_MASK,
    PLACE,
    SEQ_MASK,
    SEQ_SHIFT,
    SLOT_BYTES,
)

_HALF = (INDEX_MASK + 1) // 2


class RailReceiveEndpoint(ReceiveEndpoint):
    """The receiving endpoint from `peer` on channel `channel`. `repeated` counts duplicate messages."""

    def __init__(
        self,
        peer: int,
        channel: int,
        rails: list[ReceivingRail],
        outbox: Buffer,
        staging: Buffer | None,
        far: FarSending,
        keys: Keyring,
        staging_bytes: int,
    ) -> None:
        start = channel * staging_bytes
        super().__init__(peer, staging.bytes[start : start + staging_bytes] if staging else None)
        self.channel = channel
        self.rails = rails
        self.repeated = 0
        # A buffer stays registered as long as something refers to it.
        self._outbox, self._staging_buffer = outbox, staging
        self._far = far
        self._keys = keys
        self._grants = 0
        self._grant_pending = False

    def arrived(self, qp: int, immediate: int, now_ns: int) -> int | None:  # noqa: ARG002  (the rail has counted it)
        """See ReceiveEndpoint. A duplicate message is ignored."""
        index = self._consumed + ((immediate - self._consumed) & INDEX_MASK)
        repeated = index - self._consumed >= _HALF or index in self._ahead
        current = (self._template.seq & SEQ_MASK) == immediate >> SEQ_SHIFT & SEQ_MASK
        if current and repeated:
            self.repeated += 1
            return 0
        if not current or index >= self._granted:
            return None
        return self._consume(index)

    def progress(self) -> ReceiveProgress:
        """The messages received in the last operation."""
        return ReceiveProgress(self._template.seq, self._consumed, tuple(sorted(self._ahead)))

    def publish(self) -> None:
        """See ReceiveEndpoint."""
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
        at = self.channel * CHANNEL_MAILBOX_BYTES + slot * SLOT_BYTES
        packed = pack_grant(grant._replace(address=0, rkey=0)).ljust(GRANT_BYTES, b"\0")
        nics = len(self._far.mailbox_rkeys)
        packed += b"".join(PLACE.pack(*place) for place in self._keys.places(grant.rkey, grant.address, nics))
        self._outbox.view[at : at + len(packed)] = packed
        rail.write(
            (self._outbox.address + at, self._outbox.regions[rail.nic].lkey),
            (self._far.mailbox + at, self._far.mailbox_rkeys[rail.nic]),
            len(packed),
            self.channel << 8 | slot,
        )

    def _grant_rail(self) -> ReceivingRail | None:
        """A rail of the channel's own NIC if one is up, else any."""
        usable = [rail for rail in self.rails if rail.usable]
        return next((rail for rail in usable if rail.nic == self.channel), usable[0] if usable else None)
