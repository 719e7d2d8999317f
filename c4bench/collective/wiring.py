"""Connect the directed connections of a communicator; ranks exchange addresses through the rendezvous.

With resilience all rails of an edge are connected at once, so that backups are ready before a failure. A NIC that is
down or has no address at that time is treated as lost: the others carry its load until it comes back.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from zlib import crc32

import msgspec

from c4bench.collective.channel_order import gpus_of, has_gpus
from c4bench.collective.channel_transfer import MAX_WINDOW_FACTOR, longer
from c4bench.collective.edges import (
    CONTROL_BYTES,
    CONTROL_SLOTS,
    LEDGER_BYTES,
    RailMailbox,
    ReceivingPeer,
    SendingPeer,
)
from c4bench.collective.endpoint_context import Edges, RankEndpointContext
from c4bench.collective.endpoints import RECEIVE_DEPTH, ChannelFailover, ReceiveEndpoint, SendEndpoint
from c4bench.collective.engine import Engine
from c4bench.collective.gpu_links import GpuPair
from c4bench.collective.handshake import (
    MAILBOX_BYTES,
    MAILBOX_SLOTS,
    Backup,
    EndpointAddresses,
    ReceivingEnd,
    SendingEnd,
)
from c4bench.collective.inside import IncomingLink, InsideMeeting, InsideReceiver, InsideSender, OutgoingLink
from c4bench.collective.memory import Buffer, ChannelMemory
from c4bench.collective.options import LARGEST_CHUNK_BYTES
from c4bench.collective.rail import Rail, RailName, RailQps, ReceivingRail, SendingRail
from c4bench.collective.ring_layout import ConnName
from c4bench.model.fabric import gpu_name
from c4bench.model.qp_address import QpAddress
from c4bench.verbs.counters import MarkedPackets
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Port, Remote

_GRANT_DEPTH = 64
# One in this many grants is signaled: enough to recycle the send queue, with few wake-ups.
_GRANTS_PER_SIGNAL = 8
_NOWHERE = Remote("", 0)


class Wired(NamedTuple):
    """Connected endpoints by peer and channel, and each channel's rate: that of the slowest NIC of all ranks."""

    senders: dict[int, dict[int, SendEndpoint]]
    receivers: dict[int, dict[int, ReceiveEndpoint]]
    rates_bps: list[float]


class Wiring:
    """Connects the edges of one communicator.

    With resilience every rail has a second QP for probes, memory is registered with every NIC, and queues are deep
    enough for one rail to carry everything in flight.
    """

    def __init__(self, site: RankEndpointContext, engine: Engine) -> None:
        self._site = site
        self._engine = engine
        self._edges, self._failures = engine.edges, engine.failures
        self._options = site.options
        self._resilient = site.options.resilient
        self._ports = dict(enumerate(site.ports))
        self._sharing, self._control_slots = (len(site.ports), CONTROL_SLOTS) if self._resilient else (1, 0)

    def wire(self, key: str, to: Edges, back: Edges, *, staged: bool) -> Wired:
        """Connect to the ranks `to` and from the ranks `back`, by the channels of each.

        Every rank must call this with the same `key` and with matching peers. With `staged`, receivers get staging
        memory.
        """
        site = self._site
        sending = [self._sending_peer(peer, channels) for peer, channels in to.items() if not site.inside(peer)]
        receiving = [
            self._receiving_peer(peer, channels, staged) for peer, channels in back.items() if not site.inside(peer)
        ]
        here = [self._here(port) for port in site.ports]
        with self._met(key, back) as meeting:
            hellos = site.hellos(
                key,
                EndpointAddresses(
                    [nic.rate_bps for nic in site.nics],
                    {edge.peer: [self._sending_end(edge, nic, here[nic]) for nic in edge.mailbox] for edge in sending},
                    {
                        edge.peer: [self._receiving_end(edge, nic, here[nic]) for nic in edge.outbox]
                        for edge in receiving
                    },
                    self._resilient,
                    meeting.name if meeting else msgspec.UNSET,
                ),
            )
            inside_senders, inside_receivers = self._join_inside(meeting, hellos, to, back)
        for sending_edge in sending:
            sending_edge.far = dict(
                zip(sending_edge.mailbox, hellos[sending_edge.peer].receiving[site.rank], strict=True)
            )
        source_ports = self._source_ports(sending)
        for sending_edge in sending:
            self._join_sending(sending_edge, hellos[sending_edge.peer].rates_bps, source_ports)
        for edge in receiving:
            self._join_receiving(edge, hellos[edge.peer])
        # Nobody may write before all QPs are up: a message to a QP that is not costs a retransmission timeout.
        site.exchange(f"{key}/up")
        self._failures.connected()
        rates_bps = zip(*(hello.rates_bps for hello in hellos), strict=True)
        return Wired(
            {edge.peer: edge.senders for edge in sending} | inside_senders,
            {edge.peer: edge.receivers for edge in receiving} | inside_receivers,
            [min(channel) for channel in rates_bps],
        )

    @contextmanager
    def _met(self, key: str, back: Edges) -> Iterator[InsideMeeting | None]:
        """Listen for the ranks of this host among `back`; None without GPUs, or where ranks may reach no others."""
        site, place = self._site, self._site.process.inside
        if place is None or not has_gpus(site.members):
            yield None
            return
        name = f"{crc32(site.comm.encode()):08x}-{key}-{site.rank}"
        with InsideMeeting(place, name, self._options.connect_s, self._options.clock_ns) as meeting:
            meeting.listen(sum(map(site.inside, back)))
            yield meeting

    def _join_inside(
        self, meeting: InsideMeeting | None, hellos: Sequence[EndpointAddresses], to: Edges, back: Edges
    ) -> tuple[dict[int, dict[int, SendEndpoint]], dict[int, dict[int, ReceiveEndpoint]]]:
        """Connect to and from the ranks of this host; returns the endpoints by peer and channel."""
        site = self._site
        calls = {peer: channels for peer, channels in to.items() if site.inside(peer)}
        called = {peer: channels for peer, channels in back.items() if site.inside(peer)}
        if not calls and not called:
            return {}, {}
        assert meeting
        slot_bytes = self._options.chunk_bytes or LARGEST_CHUNK_BYTES
        outgoing = []
        for peer, channels in calls.items():
            name = hellos[peer].meets
            assert isinstance(name, str)
            outgoing.append(meeting.call(name, site.rank, peer, self._pair(site.rank, peer), channels, slot_bytes))
        incoming = meeting.accept(called)
        for link in outgoing:
            link.senders = {channel: self._inside_sender(link, channel) for channel in calls[link.peer]}
        for into in incoming:
            into.receivers = {channel: self._inside_receiver(into, channel) for channel in called[into.peer]}
        self._engine.join_inside(outgoing, incoming)
        return (
            {link.peer: dict[int, SendEndpoint](link.senders) for link in outgoing},
            {link.peer: dict[int, ReceiveEndpoint](link.receivers) for link in incoming},
        )

    def _inside_sender(self, link: OutgoingLink, channel: int) -> InsideSender:
        sender = InsideSender(link.peer, channel, link)
        name = self._inside_name(self._site.rank, link.peer, link.peer, channel)
        sender.record = self._site.recorder.connection(name, 0, self._options.clock_ns())
        return sender

    def _inside_receiver(self, link: IncomingLink, channel: int) -> InsideReceiver:
        receiver = InsideReceiver(link.peer, channel, link)
        name = self._inside_name(link.peer, self._site.rank, link.peer, channel)
        receiver.record = self._site.recorder.arrivals(name)
        return receiver

    def _inside_name(self, source: int, destination: int, peer: int, channel: int) -> ConnName:
        """What an edge inside the host is called: it has no QP, and its channel stands for one."""
        members, pair = self._site.members, self._pair(source, destination)
        sending, receiving = (gpu_name(members[source].host, gpu) for gpu in pair)
        return ConnName(self._site.record, peer, sending, receiving, channel)

    def _pair(self, source: int, destination: int) -> GpuPair:
        return GpuPair(*(gpus_of(self._site.members)[rank].index for rank in (source, destination)))

    def _nics(self, channels: Sequence[int]) -> Sequence[int]:
        """The NICs of an edge: with resilience all, for any of them may have to carry its messages."""
        return list(self._ports) if self._resilient else channels

    def _memory(self, channel_bytes: int, channels: Sequence[int]) -> dict[int, ChannelMemory]:
        """Memory for each channel: with resilience on every NIC, else on the channel's own."""
        buffers = self._site.buffers
        if not self._resilient:
            made = {nic: buffers.make({nic: self._ports[nic]}, channel_bytes) for nic in channels}
            return {nic: ChannelMemory(buffer, 0, channel_bytes) for nic, buffer in made.items()}
        buffer = buffers.make(self._ports, channel_bytes * self._sharing)
        return {
            channel: ChannelMemory(buffer, channel * channel_bytes, channel_bytes) for channel in self._nics(channels)
        }

    def _control(self) -> RailMailbox | None:
        if not self._resilient:
            return None
        incoming, outgoing = (self._site.buffers.make(self._ports, CONTROL_BYTES) for _ in range(2))
        return RailMailbox(incoming, outgoing)

    def _ends(self, port: Port, sends: int, receives: int) -> RailQps:
        data = port.connection(self._options.profile, sends=sends, receives=receives)
        probe = port.connection(self._options.timeouts.probe, sends=4, receives=1) if self._resilient else None
        return RailQps(data, probe)

    def _numbers(self, channels: Sequence[int]) -> list[tuple[int, int]]:
        """The index and the NIC of every rail of an edge."""
        qps = self._options.qps
        return [(nic * qps + qp, nic) for nic in self._nics(channels) for qp in range(qps)]

    def _sending_peer(self, peer: int, channels: Sequence[int]) -> SendingPeer:
        site, window = self._site, self._options.window
        finer = self._resilient or self._options.algorithm != "ring"
        sends = longer(MAX_WINDOW_FACTOR * window if finer else window) + 1
        # As many notices as grants, if there may be any.
        grants = MAILBOX_SLOTS if self._resilient or not any(nic.ecn for nic in site.nics) else 2 * MAILBOX_SLOTS
        depth = grants * self._sharing + self._control_slots
        rails = []
        for index, nic in self._numbers(channels):
            port = site.ports[nic]
            ends = self._ends(port, sends * self._sharing + self._control_slots, depth)
            rails.append(SendingRail(RailName(site.rank, peer, index), nic, site.nics[nic].rate_bps, port, ends, depth))
        ledger_copy = site.buffers.make(self._ports, LEDGER_BYTES) if self._resilient else None
        mailbox = self._memory(MAILBOX_BYTES, channels)
        return SendingPeer(peer, rails, {}, self._control(), mailbox, ledger_copy=ledger_copy)

    def _receiving_peer(self, peer: int, channels: Sequence[int], staged: bool) -> ReceivingPeer:
        site, depth = self._site, RECEIVE_DEPTH * self._sharing + self._control_slots
        signal_every = 1 if self._resilient else _GRANTS_PER_SIGNAL
        rails = []
        for index, nic in self._numbers(channels):
            port = site.ports[nic]
            ends = self._ends(port, _GRANT_DEPTH * self._sharing + self._control_slots, depth)
            rails.append(ReceivingRail(RailName(peer, site.rank, index), nic, port, ends, depth, signal_every))
        outbox = self._memory(MAILBOX_BYTES, channels)
        staging = self._memory(self._options.staging_bytes, channels) if staged else {}
        return ReceivingPeer(peer, rails, {}, self._control(), outbox, staging, self._options.timeouts.quiet_s)

    def _here(self, port: Port) -> Remote:
        """A NIC's address; with resilience it may have none."""
        try:
            return port.here()
        except VerbsError:
            if not self._resilient:
                raise
            return _NOWHERE

    def _sending_end(self, edge: SendingPeer, nic: int, here: Remote) -> SendingEnd:
        remotes, probes = _addresses(edge.rails, nic, here)
        mailbox = edge.mailbox[nic]
        return SendingEnd(remotes, mailbox.address, mailbox.rkey(nic), _backup(edge.control, probes, nic))

    def _receiving_end(self, edge: ReceivingPeer, nic: int, here: Remote) -> ReceivingEnd:
        remotes, probes = _addresses(edge.rails, nic, here)
        # Without staging memory nobody writes there.
        memory = (edge.staging or edge.outbox)[nic]
        backup = _backup(edge.control, probes, nic, self._failures.ledger)
        return ReceivingEnd(remotes, memory.address, memory.rkey(nic), backup)

    def _source_ports(self, edges: Sequence[SendingPeer]) -> dict[QpAddress, int]:
        """The source port of every QP of these edges; 0 leaves it to ECMP."""
        addresses = {
            self._address(edge, rail): edge.far[rail.nic].remotes[rail.name.index % self._options.qps].qp
            for edge in edges
            for rail in edge.rails
        }
        if self._options.paths == "ecmp" or not addresses:
            return dict.fromkeys(addresses, 0)
        return dict(zip(addresses, self._site.route(addresses), strict=True))

    def _address(self, edge: SendingPeer, rail: Rail) -> QpAddress:
        site = self._site
        return QpAddress(site.comm, site.rank, edge.peer, rail.nic, rail.name.index % self._options.qps)

    def _join_sending(
        self, edge: SendingPeer, far_rates_bps: Sequence[float], source_ports: dict[QpAddress, int]
    ) -> None:
        site, peer = self._site, edge.peer
        for rail in edge.rails:
            qp = rail.name.index % self._options.qps
            rail.rate_bps = min(rail.rate_bps, far_rates_bps[rail.nic])
            rail.source_port = source_ports[self._address(edge, rail)]
            self._connect(rail, edge.far[rail.nic], qp, rail.source_port)
            data = rail.ends.data
            name = ConnName(site.record, peer, site.nics[rail.nic].name, site.members[peer].nics[rail.nic], data.qp_num)
            rail.record = site.recorder.connection(name, data.source_port, self._options.clock_ns())
        failover = ChannelFailover(spread=self._options.spread) if self._resilient else None
        edge.senders |= {
            channel: SendEndpoint(peer, channel, edge.rails, mailbox, edge.far, failover)
            for channel, mailbox in edge.mailbox.items()
        }
        _join_control(edge.control, edge.far)
        self._edges.add(edge)

    def _join_receiving(self, edge: ReceivingPeer, hello: EndpointAddresses) -> None:
        site, peer = self._site, edge.peer
        far = dict(zip(edge.outbox, hello.sending[site.rank], strict=True))
        for rail in edge.rails:
            qp = rail.name.index % self._options.qps
            self._connect(rail, far[rail.nic], qp)
            source, destination = site.members[peer].nics[rail.nic], site.nics[rail.nic].name
            name = ConnName(site.record, peer, source, destination, far[rail.nic].remotes[qp].qp)
            rail.record = site.recorder.arrivals(name)
        edge.receivers |= {
            channel: ReceiveEndpoint(
                peer,
                channel,
                edge.rails,
                outbox,
                edge.staging.get(channel),
                far,
                resends=self._resilient,
                marks=MarkedPackets() if site.nics[channel].ecn and not self._resilient else None,
            )
            for channel, outbox in edge.outbox.items()
        }
        _join_control(edge.control, far)
        self._edges.add(edge)

    def _connect(self, rail: Rail, far: SendingEnd | ReceivingEnd, qp: int, source_port: int = 0) -> None:
        """Connect a rail; with resilience, one whose NIC is down or has no address is treated as lost."""
        if far.backup is None:
            rail.connect(far.remotes[qp], None, source_port)
        elif not rail.port.active:
            self._failures.unconnected(rail, "its port was down when it was to be connected")
        elif not far.remotes[qp].gid:
            self._failures.unconnected(rail, "its far end had no address when it was to be connected")
        else:
            try:
                rail.connect(far.remotes[qp], far.backup.probes[qp], source_port)
            except VerbsError as error:
                self._failures.unconnected(rail, str(error))


def _addresses(rails: Sequence[Rail], nic: int, here: Remote) -> tuple[list[Remote], list[Remote]]:
    """The addresses of the QPs on a NIC for data, and of those for probes."""
    both = [rail.remotes(here) for rail in rails if rail.nic == nic]
    return [data for data, _ in both], [probe for _, probe in both]


def _backup(control: RailMailbox | None, probes: list[Remote], nic: int, ledger: Buffer | None = None) -> Backup | None:
    if control is None:
        return None
    words = control.incoming
    at = (ledger.address, ledger.regions[nic].rkey) if ledger else (0, 0)
    return Backup(probes, words.address, words.regions[nic].rkey, *at)


def _join_control(control: RailMailbox | None, far: Mapping[int, SendingEnd] | Mapping[int, ReceivingEnd]) -> None:
    backups = [end.backup for end in far.values() if end.backup]
    if control and backups:
        control.far = backups[0].words, [backup.words_rkey for backup in backups]
