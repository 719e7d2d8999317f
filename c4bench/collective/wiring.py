"""Connect the directed connections of a communicator; ranks exchange addresses through the rendezvous.

With resilience all rails of an edge are connected at once, so that backups are ready before a failure. A NIC that is
down or has no address at that time is treated as lost: the others carry its load until it comes back.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from c4bench.collective.channel_transfer import MAX_WINDOW_FACTOR
from c4bench.collective.edges import (
    CONTROL_BYTES,
    CONTROL_SLOTS,
    LEDGER_BYTES,
    RailMailbox,
    ReceivingPeer,
    SendingPeer,
)
from c4bench.collective.endpoint_context import RankEndpointContext
from c4bench.collective.endpoints import RECEIVE_DEPTH, ChannelFailover, ReceiveEndpoint, SendEndpoint
from c4bench.collective.engine import Engine
from c4bench.collective.handshake import (
    MAILBOX_BYTES,
    MAILBOX_SLOTS,
    Backup,
    EndpointAddresses,
    ReceivingEnd,
    SendingEnd,
)
from c4bench.collective.memory import Buffer, ChannelMemory
from c4bench.collective.rail import Rail, RailName, RailQps, ReceivingRail, SendingRail
from c4bench.collective.ring_layout import ConnName
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

    senders: dict[int, list[SendEndpoint]]
    receivers: dict[int, list[ReceiveEndpoint]]
    rates_bps: list[float]


class Wiring:
    """Connects the edges of one communicator.

    With resilience every rail has a second QP for probes, memory is registered with every NIC, and queues are deep
    enough for one rail to carry everything in flight.
    """

    def __init__(self, site: RankEndpointContext, engine: Engine) -> None:
        self._site = site
        self._edges, self._failures = engine.edges, engine.failures
        self._options = site.options
        self._resilient = site.options.resilient
        self._ports = dict(enumerate(site.ports))
        self._sharing, self._control_slots = (len(site.ports), CONTROL_SLOTS) if self._resilient else (1, 0)

    def wire(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
        """Connect to the ranks `to` and from the ranks `back`.

        Every rank must call this with the same `key` and with matching peers. With `staged`, receivers get staging
        memory.
        """
        site = self._site
        sending = [self._sending_peer(peer) for peer in to]
        receiving = [self._receiving_peer(peer, staged) for peer in back]
        here = [self._here(port) for port in site.ports]
        hellos = site.hellos(
            key,
            EndpointAddresses(
                [nic.rate_bps for nic in site.nics],
                {edge.peer: [self._sending_end(edge, *each) for each in enumerate(here)] for edge in sending},
                {edge.peer: [self._receiving_end(edge, *each) for each in enumerate(here)] for edge in receiving},
                self._resilient,
            ),
        )
        source_ports = self._source_ports({peer: hellos[peer].receiving[site.rank] for peer in to})
        for sending_edge in sending:
            self._join_sending(sending_edge, hellos[sending_edge.peer], source_ports)
        for edge in receiving:
            self._join_receiving(edge, hellos[edge.peer])
        # Nobody may write before all QPs are up: a message to a QP that is not costs a retransmission timeout.
        site.exchange(f"{key}/up")
        self._failures.connected()
        rates_bps = zip(*(hello.rates_bps for hello in hellos), strict=True)
        return Wired(
            {edge.peer: edge.senders for edge in sending},
            {edge.peer: edge.receivers for edge in receiving},
            [min(channel) for channel in rates_bps],
        )

    def _memory(self, channel_bytes: int) -> list[ChannelMemory]:
        """Memory for each channel: with resilience on every NIC, else on the channel's own."""
        buffers = self._site.buffers
        if not self._resilient:
            made = [buffers.make({nic: port}, channel_bytes) for nic, port in self._ports.items()]
            return [ChannelMemory(buffer, 0, channel_bytes) for buffer in made]
        buffer = buffers.make(self._ports, channel_bytes * self._sharing)
        return [ChannelMemory(buffer, channel * channel_bytes, channel_bytes) for channel in self._ports]

    def _control(self) -> RailMailbox | None:
        if not self._resilient:
            return None
        incoming, outgoing = (self._site.buffers.make(self._ports, CONTROL_BYTES) for _ in range(2))
        return RailMailbox(incoming, outgoing)

    def _ends(self, port: Port, sends: int, receives: int) -> RailQps:
        data = port.connection(self._options.profile, sends=sends, receives=receives)
        probe = port.connection(self._options.timeouts.probe, sends=4, receives=1) if self._resilient else None
        return RailQps(data, probe)

    def _numbers(self) -> list[tuple[int, int]]:
        """The index and the NIC of every rail."""
        qps = self._options.qps
        return [(nic * qps + qp, nic) for nic in self._ports for qp in range(qps)]

    def _sending_peer(self, peer: int) -> SendingPeer:
        site, window = self._site, self._options.window
        finer = self._resilient or self._options.algorithm != "ring"
        sends = (MAX_WINDOW_FACTOR * window if finer else window) + 1
        # As many notices as grants, if there may be any.
        grants = MAILBOX_SLOTS if self._resilient or not any(nic.ecn for nic in site.nics) else 2 * MAILBOX_SLOTS
        depth = grants * self._sharing + self._control_slots
        rails = []
        for index, nic in self._numbers():
            port = site.ports[nic]
            ends = self._ends(port, sends * self._sharing + self._control_slots, depth)
            rails.append(SendingRail(RailName(site.rank, peer, index), nic, site.nics[nic].rate_bps, port, ends, depth))
        ledger_copy = site.buffers.make(self._ports, LEDGER_BYTES) if self._resilient else None
        return SendingPeer(peer, rails, [], self._control(), self._memory(MAILBOX_BYTES), ledger_copy=ledger_copy)

    def _receiving_peer(self, peer: int, staged: bool) -> ReceivingPeer:
        site, depth = self._site, RECEIVE_DEPTH * self._sharing + self._control_slots
        signal_every = 1 if self._resilient else _GRANTS_PER_SIGNAL
        rails = []
        for index, nic in self._numbers():
            port = site.ports[nic]
            ends = self._ends(port, _GRANT_DEPTH * self._sharing + self._control_slots, depth)
            rails.append(ReceivingRail(RailName(peer, site.rank, index), nic, port, ends, depth, signal_every))
        outbox = self._memory(MAILBOX_BYTES)
        staging = self._memory(self._options.staging_bytes) if staged else []
        return ReceivingPeer(peer, rails, [], self._control(), outbox, staging, self._options.timeouts.quiet_s)

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

    def _source_ports(self, to: Mapping[int, Sequence[ReceivingEnd]]) -> dict[QpAddress, int]:
        """The source port of every QP to these ranks' ends, by NIC; 0 leaves it to ECMP."""
        site, qps = self._site, self._options.qps
        addresses = {
            QpAddress(site.comm, site.rank, peer, nic, index % qps): far[nic].remotes[index % qps].qp
            for peer, far in to.items()
            for index, nic in self._numbers()
        }
        if self._options.paths == "ecmp" or not addresses:
            return dict.fromkeys(addresses, 0)
        return dict(zip(addresses, site.route(addresses), strict=True))

    def _join_sending(self, edge: SendingPeer, far: EndpointAddresses, source_ports: dict[QpAddress, int]) -> None:
        site, peer = self._site, edge.peer
        edge.far = far.receiving[site.rank]
        for rail in edge.rails:
            qp = rail.name.index % self._options.qps
            rail.rate_bps = min(rail.rate_bps, far.rates_bps[rail.nic])
            rail.source_port = source_ports[QpAddress(site.comm, site.rank, peer, rail.nic, qp)]
            self._connect(rail, edge.far[rail.nic], qp, rail.source_port)
            data = rail.ends.data
            name = ConnName(site.record, peer, site.nics[rail.nic].name, site.members[peer].nics[rail.nic], data.qp_num)
            rail.record = site.recorder.connection(name, data.source_port, self._options.clock_ns())
        failover = ChannelFailover(spread=self._options.spread) if self._resilient else None
        edge.senders += [
            SendEndpoint(peer, channel, edge.rails, edge.mailbox[channel], edge.far, failover)
            for channel in self._ports
        ]
        _join_control(edge.control, edge.far)
        self._edges.add(edge)

    def _join_receiving(self, edge: ReceivingPeer, hello: EndpointAddresses) -> None:
        site, peer = self._site, edge.peer
        far = hello.sending[site.rank]
        for rail in edge.rails:
            qp = rail.name.index % self._options.qps
            self._connect(rail, far[rail.nic], qp)
            source, destination = site.members[peer].nics[rail.nic], site.nics[rail.nic].name
            name = ConnName(site.record, peer, source, destination, far[rail.nic].remotes[qp].qp)
            rail.record = site.recorder.arrivals(name)
        edge.receivers += [
            ReceiveEndpoint(
                peer,
                channel,
                edge.rails,
                edge.outbox[channel],
                edge.staging[channel] if edge.staging else None,
                far,
                resends=self._resilient,
                marks=MarkedPackets() if site.nics[channel].ecn and not self._resilient else None,
            )
            for channel in self._ports
        ]
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


def _join_control(control: RailMailbox | None, far: Sequence[SendingEnd] | Sequence[ReceivingEnd]) -> None:
    backups = [end.backup for end in far if end.backup]
    if control and backups:
        control.far = backups[0].words, [backup.words_rkey for backup in backups]
