"""Connect all rails of a communicator's edges at once, so that backups are ready before a failure.

A NIC that is down or has no address at that time is treated as lost: the others carry its load until it comes back.
"""

from collections.abc import Sequence

import msgspec

from c4bench.collective.channel_transfer import MAX_WINDOW_FACTOR
from c4bench.collective.endpoints import RECEIVE_DEPTH
from c4bench.collective.handshake import MAILBOX_SLOTS
from c4bench.collective.memory import Buffer
from c4bench.collective.resilient.engine import RailEngine
from c4bench.collective.resilient.hello import FarReceiving, FarSending, RailHello
from c4bench.collective.resilient.keys import Keyring
from c4bench.collective.resilient.mailbox import CONTROL_SLOTS, RailMailbox
from c4bench.collective.resilient.messages import RailName
from c4bench.collective.resilient.peer_rails import ReceivingPeer, SendingPeer
from c4bench.collective.resilient.rail import Ends, Rail, ReceivingRail, SendingRail, State
from c4bench.collective.resilient.receive_endpoint import RailReceiveEndpoint
from c4bench.collective.resilient.repair import LEDGER_BYTES
from c4bench.collective.resilient.send_endpoint import CHANNEL_MAILBOX_BYTES, ChannelFailover, RailSendEndpoint
from c4bench.collective.ring_entries import ConnName
from c4bench.collective.wiring import RankEndpointContext, Wired, route, slowest
from c4bench.model.qp_address import QpAddress
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Remote

_GRANT_SENDS = 64
_NOWHERE = Remote("", 0)
_decode_hello = msgspec.msgpack.Decoder(RailHello).decode  # see `collective.wiring`


class RailWiring:
    """Connects the edges of one communicator. Queues are deep enough for one rail to carry everything in flight."""

    def __init__(self, site: RankEndpointContext, engine: RailEngine, ledger: Buffer, keys: Keyring) -> None:
        self._site = site
        self._engine = engine
        self._ledger = ledger
        self._keys = keys
        self._channels = len(site.ports)
        self._unconnected: list[tuple[RailName, str]] = []

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """See `collective.wiring.wire`."""
        site = self._site
        sending = {peer: self._sending(peer) for peer in to}
        receiving = {peer: self._receiving(peer) for peer in back}
        mailboxes = {peer: self._buffer(CHANNEL_MAILBOX_BYTES) for peer in to}
        sending_controls = {peer: RailMailbox(site.buffers, site.ports) for peer in to}
        receiving_controls = {peer: RailMailbox(site.buffers, site.ports) for peer in back}
        outboxes = {peer: self._buffer(CHANNEL_MAILBOX_BYTES) for peer in back}
        stagings = {peer: self._buffer(site.options.staging_bytes) if staged else None for peer in back}
        hello = RailHello(
            [nic.rate_bps for nic in site.nics],
            {
                peer: FarSending(
                    *_addresses(rails), mailboxes[peer].address, mailboxes[peer].rkeys, sending_controls[peer].box
                )
                for peer, rails in sending.items()
            },
            {
                peer: FarReceiving(
                    *_addresses(rails),
                    staging.address if staging else 0,
                    staging.rkeys if staging else [],
                    self._ledger.address,
                    self._ledger.rkeys,
                    receiving_controls[peer].box,
                )
                for (peer, rails), staging in zip(receiving.items(), stagings.values(), strict=True)
            },
        )
        hellos = [_decode_hello(raw) for raw in site.hellos(key, msgspec.msgpack.encode(hello))]
        self._route(sending)
        for peer, rails in sending.items():
            self._join_sending(peer, rails, hellos, mailboxes[peer], sending_controls[peer])
        for peer, back_rails in receiving.items():
            self._join_receiving(peer, back_rails, hellos, outboxes[peer], stagings[peer], receiving_controls[peer])
        site.exchange(f"{key}/up")
        self._fence_unconnected()
        edges = self._engine.edges.all
        return Wired(
            {edge.peer: list(edge.senders) for edge in edges if isinstance(edge, SendingPeer) and edge.peer in to},
            {
                edge.peer: list(edge.receivers)
                for edge in edges
                if isinstance(edge, ReceivingPeer) and edge.peer in back
            },
            slowest([each.rates_bps for each in hellos]),
        )

    def _buffer(self, channel_bytes: int) -> Buffer:
        return self._site.buffers.make(self._site.ports, channel_bytes * self._channels)

    def _numbers(self) -> list[tuple[int, int]]:
        """The index and the NIC of every rail."""
        qps = self._site.options.qps
        return [(nic * qps + qp, nic) for nic in range(self._channels) for qp in range(qps)]

    def _ends(self, nic: int, sends: int, receives: int) -> Ends:
        port, options = self._site.ports[nic], self._site.options
        return Ends(
            port.connection(options.profile, sends=sends, receives=receives),
            port.connection(options.timeouts.probe, sends=4, receives=1),
        )

    def _sending(self, peer: int) -> list[SendingRail]:
        site, depth = self._site, MAILBOX_SLOTS * self._channels + CONTROL_SLOTS
        sends = (MAX_WINDOW_FACTOR * site.options.window + 1) * self._channels + CONTROL_SLOTS
        rails = []
        for number, nic in self._numbers():
            ends = self._ends(nic, sends, depth)
            name = ConnName(site.record, peer, site.nics[nic].name, site.members[peer].nics[nic], ends.data.qp_num)
            record = site.recorder.connection(name, 0, site.options.clock_ns())
            rail_name = RailName(site.rank, peer, number)
            rails.append(SendingRail(rail_name, nic, site.nics[nic].rate_bps, site.ports[nic], ends, depth, record))
        return rails

    def _receiving(self, peer: int) -> list[ReceivingRail]:
        site, depth = self._site, RECEIVE_DEPTH * self._channels + CONTROL_SLOTS
        return [
            ReceivingRail(
                RailName(peer, site.rank, number),
                nic,
                site.nics[nic].rate_bps,
                site.ports[nic],
                self._ends(nic, _GRANT_SENDS * self._channels + CONTROL_SLOTS, depth),
                depth,
            )
            for number, nic in self._numbers()
        ]

    def _route(self, sending: dict[int, list[SendingRail]]) -> None:
        """Ask for paths if they are planned."""
        site = self._site
        rails = [rail for each in sending.values() for rail in each]
        if site.options.paths == "ecmp" or not rails:
            return
        addresses = [
            QpAddress(site.comm, site.rank, rail.peer, rail.nic, rail.name.index % site.options.qps) for rail in rails
        ]
        for rail, source_port in zip(rails, route(site, addresses), strict=True):
            rail.source_port = source_port

    def _connect(self, rail: Rail, data: Remote, probe: Remote, source_port: int = 0) -> None:
        """Connect a rail; one whose NIC is down or has no address is treated as lost."""
        if not rail.port.active:
            self._mark_unconnected(rail, "its port was down when it was to be connected")
            return
        if data == _NOWHERE:
            self._mark_unconnected(rail, "its far end had no address when it was to be connected")
            return
        try:
            rail.connect(data, probe, source_port)
        except VerbsError as error:
            self._mark_unconnected(rail, str(error))

    def _mark_unconnected(self, rail: Rail, why: str) -> None:
        # No control message may use this rail.
        rail.state = State.TRIAL
        self._unconnected.append((rail.name, why))

    def _fence_unconnected(self) -> None:
        """Fence the rails that could not be connected, once the others can carry control messages."""
        engine, now_ns = self._engine, self._site.options.clock_ns()
        for name, why in self._unconnected:
            engine.repair.broken(*engine.edges.by_name[name], why, now_ns)
        self._unconnected.clear()

    def _join_sending(
        self, peer: int, rails: list[SendingRail], hellos: Sequence[RailHello], mailbox: Buffer, control: RailMailbox
    ) -> None:
        far = hellos[peer].receiving[self._site.rank]
        control.far = far.words
        for rail, data, probe in zip(rails, far.data, far.probe, strict=True):
            rail.rate_bps = min(rail.rate_bps, hellos[peer].rates_bps[rail.nic])
            self._connect(rail, data, probe, rail.source_port)
            rail.record.move(rail.ends.data.source_port)
        staging_bytes = self._site.options.staging_bytes
        pool = ChannelFailover(spread=self._site.options.spread)
        senders = [
            RailSendEndpoint(peer, channel, rails, mailbox, far, self._keys, staging_bytes, pool)
            for channel in range(self._channels)
        ]
        self._engine.edges.add(
            SendingPeer(peer, rails, senders, far, self._site.buffers.make(self._site.ports, LEDGER_BYTES), control)
        )

    def _join_receiving(
        self,
        peer: int,
        rails: list[ReceivingRail],
        hellos: Sequence[RailHello],
        outbox: Buffer,
        staging: Buffer | None,
        control: RailMailbox,
    ) -> None:
        site, far = self._site, hellos[peer].sending[self._site.rank]
        control.far = far.words
        for rail, data, probe in zip(rails, far.data, far.probe, strict=True):
            self._connect(rail, data, probe)
            name = ConnName(site.record, peer, site.members[peer].nics[rail.nic], site.nics[rail.nic].name, data.qp)
            rail.record = site.recorder.arrivals(name)
        staging_bytes = site.options.staging_bytes
        receivers = [
            RailReceiveEndpoint(peer, channel, rails, outbox, staging, far, self._keys, staging_bytes)
            for channel in range(self._channels)
        ]
        self._engine.edges.add(ReceivingPeer(peer, rails, receivers, control))


def _addresses(rails: Sequence[Rail]) -> tuple[list[Remote], list[Remote]]:
    """The addresses of the QPs for data, and of those for probes."""
    here = [_address(rail) for rail in rails]
    return [data for data, _ in here], [probe for _, probe in here]


def _address(rail: Rail) -> tuple[Remote, Remote]:
    try:
        return rail.here()
    except VerbsError:
        return _NOWHERE, _NOWHERE
