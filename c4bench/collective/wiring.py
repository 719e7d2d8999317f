"""Connect the directed connections of a communicator; ranks exchange addresses through the rendezvous."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from c4bench.collective.endpoints import RECEIVE_DEPTH, ReceiveEndpoint, SendEndpoint
from c4bench.collective.errors import CollectiveError
from c4bench.collective.handshake import MAILBOX_BYTES, MAILBOX_SLOTS, Hello, Mode, ReceivingEnd, SendingEnd
from c4bench.collective.memory import Buffer, Buffers
from c4bench.collective.multi_qp import GRANT_DEPTH, MultiQpReceiveEndpoint, MultiQpSendEndpoint, WeightedQp
from c4bench.collective.null_recorder import NullRecorder
from c4bench.collective.options import Options
from c4bench.collective.process import RankProcess
from c4bench.collective.recorder import Recorder
from c4bench.collective.rendezvous import AbsentError, FailedError
from c4bench.collective.ring_entries import ConnName
from c4bench.model.fabric import Flow, Nic
from c4bench.model.qp_address import QpAddress
from c4bench.model.telemetry import Member
from c4bench.verbs.marks import MarkedPackets
from c4bench.verbs.transport import Connection, Port, Remote

# Built at import: msgspec 0.22 has crashed when two threads decoded a type for the first time at once.
_decode_mode = msgspec.msgpack.Decoder(Mode).decode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class RoutedQp(NamedTuple):
    """A QP with a planned path, and the flow that C4P planned for it."""

    address: QpAddress
    flow: Flow


@dataclass(frozen=True)
class RankEndpointContext:
    """A rank's view of its communicator, as wiring needs it. `routed` are the QPs with planned paths."""

    comm: str
    rank: int
    members: tuple[Member, ...]
    process: RankProcess
    nics: tuple[Nic, ...]
    ports: tuple[Port, ...]
    recorder: Recorder | NullRecorder
    record: int
    options: Options
    routed: list[RoutedQp] = field(default_factory=list)
    buffers: Buffers = field(default_factory=Buffers)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def exchange(self, key: str, payload: bytes = b"") -> list[bytes]:
        """All-gather under a key of this communicator.

        Raises CollectiveError `ABSENT`, which names the first missing rank, or `ABORTED`, which names a failed one.
        """
        try:
            return self.process.rendezvous.exchange(
                self.comm, key, self.rank, self.size, payload, self.options.connect_s
            )
        except AbsentError as error:
            raise self._error(key, str(error), error.ranks[0], "ABSENT") from None
        except FailedError as error:
            peer = error.failure.rank
            raise self._error(key, f"rank {peer} failed: {error}", peer, "ABORTED") from None

    def hellos(self, key: str, hello: bytes) -> list[bytes]:
        """Exchange hellos. Also raises CollectiveError `MISMATCH`, if ranks disagree about `resilient`."""
        hellos = self.exchange(key, hello)
        modes = [_decode_mode(raw).resilient for raw in hellos]
        other = next((rank for rank, mode in enumerate(modes) if mode != self.options.resilient), None)
        if other is not None:
            kinds = {True: "resilient", False: "not resilient"}
            message = (
                f"rank {other} is {kinds[modes[other]]} and this one is {kinds[self.options.resilient]}; "
                "give every rank the same options"
            )
            raise self._error(key, message, other, "MISMATCH")
        return hellos

    def _error(self, key: str, message: str, peer: int, status: str) -> CollectiveError:
        kind = f"connecting {key.partition('/')[0]}"
        return CollectiveError(message, comm=self.comm, rank=self.rank, kind=kind, peer=peer, status=status)


@dataclass
class _Half:
    """An endpoint that is not connected yet. `buffers` are the mailbox, or the outbox and any staging memory."""

    connections: list[Connection]
    buffers: list[Buffer] = field(default_factory=list)


_Halves = dict[int, list[_Half]]


class Wired(NamedTuple):
    """Connected endpoints by peer and channel, and each channel's rate: that of the slowest NIC of all ranks."""

    senders: dict[int, list[SendEndpoint]]
    receivers: dict[int, list[ReceiveEndpoint]]
    rates_bps: list[float]


def wire(site: RankEndpointContext, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
    """Connect to the ranks `to` and from the ranks `back`.

    Every rank must call this with the same `key` and with matching peers. With `staged`, receivers get staging memory.
    """
    sending = {peer: [_sending_half(site, port) for port in site.ports] for peer in to}
    receiving = {peer: [_receiving_half(site, port, staged) for port in site.ports] for peer in back}
    hello = msgspec.msgpack.encode(_hello(site, sending, receiving))
    hellos = [_decode_hello(raw) for raw in site.hellos(key, hello)]
    routes = _routes(site, to)
    senders = {
        peer: [
            _sender(site, peer, channel, half, hellos[peer].receiving[site.rank][channel], routes)
            for channel, half in enumerate(halves)
        ]
        for peer, halves in sending.items()
    }
    receivers = {
        peer: [
            _receiver(site, peer, channel, half, hellos[peer].sending[site.rank][channel])
            for channel, half in enumerate(halves)
        ]
        for peer, halves in receiving.items()
    }
    # Nobody may write before all QPs are up: a message to a QP that is not costs a retransmission timeout.
    site.exchange(f"{key}/up")
    return Wired(senders, receivers, slowest([hello.rates_bps for hello in hellos]))


def slowest(rates_bps: Sequence[Sequence[float]]) -> list[float]:
    """Each channel's rate: that of the slowest NIC of all ranks."""
    return [min(channel) for channel in zip(*rates_bps, strict=True)]


def _sending_half(site: RankEndpointContext, port: Port) -> _Half:
    options = site.options
    connections = [
        port.connection(options.profile, sends=options.window + 1, receives=_notices_and_grants(site))
        for _ in range(options.qps)
    ]
    return _Half(connections, [site.buffers.make([port], MAILBOX_BYTES)])


def _receiving_half(site: RankEndpointContext, port: Port, staged: bool) -> _Half:
    options = site.options
    connections = [
        port.connection(options.profile, sends=GRANT_DEPTH, receives=RECEIVE_DEPTH) for _ in range(options.qps)
    ]
    sizes = [MAILBOX_BYTES, options.staging_bytes] if staged else [MAILBOX_BYTES]
    return _Half(connections, [site.buffers.make([port], size) for size in sizes])


def _hello(site: RankEndpointContext, sending: _Halves, receiving: _Halves) -> Hello:
    here = [port.here() for port in site.ports]
    return Hello(
        [nic.rate_bps for nic in site.nics],
        {
            peer: [
                SendingEnd(_remotes(at, half), half.buffers[0].address, half.buffers[0].region.rkey)
                for at, half in zip(here, halves, strict=True)
            ]
            for peer, halves in sending.items()
        },
        {
            peer: [
                ReceivingEnd(_remotes(at, half), half.buffers[-1].address, half.buffers[-1].region.rkey)
                for at, half in zip(here, halves, strict=True)
            ]
            for peer, halves in receiving.items()
        },
    )


def _remotes(here: Remote, half: _Half) -> list[Remote]:
    return [msgspec.structs.replace(here, qp=connection.qp_num) for connection in half.connections]


def _routes(site: RankEndpointContext, to: Sequence[int]) -> dict[QpAddress, int]:
    """The source port of every QP to the ranks `to`."""
    addresses = [
        QpAddress(site.comm, site.rank, peer, channel, qp)
        for peer in to
        for channel in range(len(site.ports))
        for qp in range(site.options.qps)
    ]
    if site.options.paths == "ecmp" or not addresses:
        return dict.fromkeys(addresses, 0)
    return dict(zip(addresses, route(site, addresses), strict=True))


def route(site: RankEndpointContext, addresses: Sequence[QpAddress]) -> list[int]:
    """Ask C4P for the paths of QPs; returns their source ports and notes them in `site.routed`."""
    routed = [RoutedQp(address, _flow(site, address)) for address in addresses]
    site.routed.extend(routed)
    return site.process.rendezvous.route([qp.flow for qp in routed])


def _flow(site: RankEndpointContext, address: QpAddress) -> Flow:
    job, nic = site.process.job, site.nics[address.channel]
    destination = site.members[address.peer].nics[address.channel]
    return Flow(address.flow_id(job), job, nic.name, destination, nic.rate_bps / site.options.qps)


def _notices_and_grants(site: RankEndpointContext) -> int:
    """How many grants may come before they are read, and as many notices of marked packets if there may be any."""
    return 2 * MAILBOX_SLOTS if any(nic.ecn for nic in site.nics) else MAILBOX_SLOTS


def _sender(
    site: RankEndpointContext, peer: int, channel: int, half: _Half, far: ReceivingEnd, routes: dict[QpAddress, int]
) -> SendEndpoint:
    source, destination = site.nics[channel].name, site.members[peer].nics[channel]
    qps = []
    for index, (connection, remote) in enumerate(zip(half.connections, far.remotes, strict=True)):
        address = QpAddress(site.comm, site.rank, peer, channel, index)
        connection.connect(remote, routes[address], receives=_notices_and_grants(site))
        name = ConnName(site.record, peer, source, destination, connection.qp_num)
        qps.append(
            WeightedQp(connection, site.recorder.connection(name, connection.source_port, site.options.clock_ns()))
        )
    return MultiQpSendEndpoint(peer, qps, half.buffers[0], far)


def _receiver(site: RankEndpointContext, peer: int, channel: int, half: _Half, far: SendingEnd) -> ReceiveEndpoint:
    source, destination = site.members[peer].nics[channel], site.nics[channel].name
    records = []
    for connection, remote in zip(half.connections, far.remotes, strict=True):
        connection.connect(remote, receives=RECEIVE_DEPTH)
        records.append(site.recorder.arrivals(ConnName(site.record, peer, source, destination, remote.qp)))
    staging = half.buffers[1] if len(half.buffers) > 1 else None
    marks = MarkedPackets() if site.nics[channel].ecn else None
    return MultiQpReceiveEndpoint(peer, half.connections, half.buffers[0], staging, far, records, marks)
