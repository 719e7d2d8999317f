"""A rank's connections: the ring at once, all pairs when an operation first needs them."""

from collections.abc import Mapping, Sequence

from c4bench.collective import schedule
from c4bench.collective.backends import TransportBackend
from c4bench.collective.channel_transfer import ChannelSplit
from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.wiring import RankEndpointContext

Ends = tuple[dict[int, SendEndpoint], dict[int, ReceiveEndpoint]]


class Connections:
    """The connections of a ring, or of a chain from rank 0 if not `closed`. `ring` has this rank's ends by channel."""

    def __init__(self, site: RankEndpointContext, fabric: TransportBackend, *, closed: bool) -> None:
        self._site, self._fabric = site, fabric
        self._pairs: list[Ends] = []
        self.ring: list[tuple[SendEndpoint | None, ReceiveEndpoint | None]] = []
        self.default_split = self._split_by_rate([nic.rate_bps for nic in site.nics])
        if site.size > 1:
            self._wire_ring(closed=closed)

    def _wire_ring(self, *, closed: bool) -> None:
        site = self._site
        right, left = (site.rank + 1) % site.size, (site.rank - 1) % site.size
        to = [right] if closed or right else []
        back = [left] if closed or site.rank else []
        senders, receivers, rates_bps = self._fabric.wire("ring", to, back, staged=closed)
        self.default_split = self._split_by_rate(rates_bps)
        self._attach(senders, receivers)
        self.ring = [
            (senders[right][channel] if to else None, receivers[left][channel] if back else None)
            for channel in range(len(site.ports))
        ]

    def _split_by_rate(self, rates_bps: Sequence[float]) -> ChannelSplit:
        """A split over all channels in proportion to their rates."""
        weights = tuple(max(1, round(rate_bps)) for rate_bps in rates_bps)
        options = self._site.options
        return ChannelSplit(weights, options.chunk_for(min(rates_bps)), options.window)

    def _attach(
        self, senders: Mapping[int, list[SendEndpoint]], receivers: Mapping[int, list[ReceiveEndpoint]]
    ) -> None:
        sides: list[Sequence[SendEndpoint | ReceiveEndpoint]] = [*senders.values(), *receivers.values()]
        for ends in sides:
            for channel, end in enumerate(ends):
                self._fabric.engine.attach(channel, end)

    @property
    def meshed(self) -> bool:
        """Whether all pairs are connected."""
        return bool(self._pairs)

    def pairs(self) -> list[Ends]:
        """Endpoints to and from every other rank, by channel. The first call connects them; ring edges are reused."""
        if not self._pairs:
            steps = schedule.shift(self._site.rank, self._site.size)
            right, left = steps[0]
            to = [peer for peer, _ in steps if peer != right]
            back = [peer for _, peer in steps if peer != left]
            senders, receivers, _ = self._fabric.wire("pairs", to, back, staged=False)
            self._attach(senders, receivers)
            for channel, (sender, receiver) in enumerate(self.ring):
                assert sender is not None
                assert receiver is not None
                self._pairs.append(
                    (
                        {right: sender} | {peer: ends[channel] for peer, ends in senders.items()},
                        {left: receiver} | {peer: ends[channel] for peer, ends in receivers.items()},
                    )
                )
        return self._pairs

    def sender(self, peer: int, channel: int) -> SendEndpoint:
        """The sending endpoint to `peer` on a channel. Raises LookupError if there is none."""
        sender = self._fabric.engine.sender(peer, channel)
        if sender is None:
            site = self._site
            raise LookupError(f"rank {site.rank} of {site.comm} sends nothing to rank {peer} on channel {channel}")
        return sender
