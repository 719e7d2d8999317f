"""How a rank is connected to the others: as a ring at once, with everybody when that is first asked for."""

from collections.abc import Mapping, Sequence

from c4bench.collective import schedule
from c4bench.collective.backends import TransportBackend
from c4bench.collective.channel_split import ChannelSplit
from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.wiring import RankEndpointContext

Ends = tuple[dict[int, SendEndpoint], dict[int, ReceiveEndpoint]]


class Connections:
    """Connected as a ring; or, not `closed`, as a line from rank 0. `ring` has this rank's ends, by channel."""

    def __init__(self, site: RankEndpointContext, fabric: TransportBackend, *, closed: bool) -> None:
        self._site, self._fabric = site, fabric
        self._pairs: list[Ends] = []
        self.ring: list[tuple[SendEndpoint | None, ReceiveEndpoint | None]] = []
        self.usual = self._carriage([nic.rate_bps for nic in site.nics])
        if site.size > 1:
            self._wire_ring(closed=closed)

    def _wire_ring(self, *, closed: bool) -> None:
        site = self._site
        right, left = (site.rank + 1) % site.size, (site.rank - 1) % site.size
        to = [right] if closed or right else []
        back = [left] if closed or site.rank else []
        outlets, inlets, rates_bps = self._fabric.wire("ring", to, back, staged=closed)
        self.usual = self._carriage(rates_bps)
        self._attach(outlets, inlets)
        self.ring = [
            (outlets[right][channel] if to else None, inlets[left][channel] if back else None)
            for channel in range(len(site.ports))
        ]

    def _carriage(self, rates_bps: Sequence[float]) -> ChannelSplit:
        """By all channels, each at its rate."""
        weights = tuple(max(1, round(rate_bps)) for rate_bps in rates_bps)
        options = self._site.options
        return ChannelSplit(weights, options.chunk_for(min(rates_bps)), options.window)

    def _attach(self, outlets: Mapping[int, list[SendEndpoint]], inlets: Mapping[int, list[ReceiveEndpoint]]) -> None:
        sides: list[Sequence[SendEndpoint | ReceiveEndpoint]] = [*outlets.values(), *inlets.values()]
        for ends in sides:
            for channel, end in enumerate(ends):
                self._fabric.engine.attach(channel, end)

    @property
    def meshed(self) -> bool:
        """Whether all pairs are connected."""
        return bool(self._pairs)

    def pairs(self) -> list[Ends]:
        """Ends to and from every other rank, by channel; connected at the first call, the ring's serve its edges."""
        if not self._pairs:
            steps = schedule.shift(self._site.rank, self._site.size)
            right, left = steps[0]
            to = [peer for peer, _ in steps if peer != right]
            back = [peer for _, peer in steps if peer != left]
            outlets, inlets, _ = self._fabric.wire("pairs", to, back, staged=False)
            self._attach(outlets, inlets)
            for channel, (outlet, inlet) in enumerate(self.ring):
                assert outlet is not None
                assert inlet is not None
                self._pairs.append(
                    (
                        {right: outlet} | {peer: ends[channel] for peer, ends in outlets.items()},
                        {left: inlet} | {peer: ends[channel] for peer, ends in inlets.items()},
                    )
                )
        return self._pairs

    def outlet(self, peer: int, channel: int) -> SendEndpoint:
        """The sending end towards `peer`. LookupError where there is none."""
        found = self._fabric.engine.outlet(peer, channel)
        if found is None:
            site = self._site
            raise LookupError(f"rank {site.rank} of {site.comm} sends nothing to rank {peer} on channel {channel}")
        return found
