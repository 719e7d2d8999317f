"""Brings up the directed connections of a communicator, agreed by all ranks through the rendezvous."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from c4bench.collective.endpoints import INLET_RECEIVES, ReceiveEndpoint, SendEndpoint
from c4bench.collective.errors import CollectiveError
from c4bench.collective.handshake import MAILBOX_BYTES, MAILBOX_SLOTS, Hello, Mode, ReceivingEnd, SendingEnd
from c4bench.collective.memory import Buffer, Buffers
from c4bench.collective.multi_qp import INLET_SENDS, MultiQpReceiveEndpoint, MultiQpSendEndpoint, WeightedQp
from c4bench.collective.null_recorder import NullRecorder
from c4bench.collective.options import Options
from c4bench.collective.process import RankProcess
from c4bench.collective.recorder import Recorder
from c4bench.collective.rendezvous import AbsentError, FailedError
from c4bench.collective.ring_entries import ConnName
from c4bench.model.fabric import Flow, Nic
from c4bench.model.telemetry import Member
from c4bench.verbs.transport import Connection, Port, Remote


@dataclass(frozen=True)
class RankEndpointContext:
    """Where a rank stands: what wiring needs to know about its communicator. `routed` flows hold planned paths."""

    comm: str
    rank: int
    members: tuple[Member, ...]
    process: RankProcess
    nics: tuple[Nic, ...]
    ports: tuple[Port, ...]
    recorder: Recorder | NullRecorder
    record: int
    options: Options
    routed: list[str] = field(default_factory=list)
    buffers: Buffers = field(default_factory=Buffers)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def exchange(self, key: str, payload: bytes = b"") -> list[bytes]:
        """All-gather under a key of this communicator.

        Raises CollectiveError `ABSENT` that names the first missing rank, or `ABORTED` that names one that failed.
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
        """Exchange hellos. Raises CollectiveError `MISMATCH` too, where ranks disagree about `resilient`."""
        said = self.exchange(key, hello)
        modes = [msgspec.msgpack.decode(raw, type=Mode).resilient for raw in said]
        other = next((rank for rank, mode in enumerate(modes) if mode != self.options.resilient), None)
        if other is not None:
            kinds = {True: "resilient", False: "not resilient"}
            message = (
                f"rank {other} is {kinds[modes[other]]} and this one is {kinds[self.options.resilient]}; "
                "give every rank the same options"
            )
            raise self._error(key, message, other, "MISMATCH")
        return said

    def _error(self, key: str, message: str, peer: int, status: str) -> CollectiveError:
        kind = f"connecting {key.partition('/')[0]}"
        return CollectiveError(message, comm=self.comm, rank=self.rank, kind=kind, peer=peer, status=status)


@dataclass
class _Half:
    """An end that is made but not connected. `buffers` are the mailbox, or the outbox and any staging."""

    connections: list[Connection]
    buffers: list[Buffer] = field(default_factory=list)


class _Place(NamedTuple):
    """A connection of this rank: to or from which rank, on which channel."""

    peer: int
    channel: int


class _QpPlace(NamedTuple):
    """One QP of a connection."""

    place: _Place
    qp: int


_Halves = dict[int, list[_Half]]


class Wired(NamedTuple):
    """Connected ends by peer, in the order of channels, and each channel's rate: its slowest NIC's of all ranks."""

    outlets: dict[int, list[SendEndpoint]]
    inlets: dict[int, list[ReceiveEndpoint]]
    rates_bps: list[float]


def wire(site: RankEndpointContext, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> Wired:
    """Connect to the ranks `to` and from the ranks `back`.

    Every rank calls this with the same `key` and with matching peers. With `staged` the inlets get staging memory.
    """
    sending = {peer: [_sending_half(site, port) for port in site.ports] for peer in to}
    receiving = {peer: [_receiving_half(site, port, staged) for port in site.ports] for peer in back}
    hello = msgspec.msgpack.encode(_hello(site, sending, receiving))
    hellos = [msgspec.msgpack.decode(raw, type=Hello) for raw in site.hellos(key, hello)]
    routes = _routes(site, to)
    outlets = {
        peer: [
            _outlet(site, _Place(peer, channel), half, hellos[peer].receiving[site.rank][channel], routes)
            for channel, half in enumerate(halves)
        ]
        for peer, halves in sending.items()
    }
    inlets = {
        peer: [
            _inlet(site, _Place(peer, channel), half, hellos[peer].sending[site.rank][channel])
            for channel, half in enumerate(halves)
        ]
        for peer, halves in receiving.items()
    }
    # Nobody may write before the far end can receive: a message to a QP that is not up costs a retransmission timer.
    site.exchange(f"{key}/up")
    return Wired(outlets, inlets, slowest([hello.rates_bps for hello in hellos]))


def slowest(rates_bps: Sequence[Sequence[float]]) -> list[float]:
    """Each channel's rate: that of its slowest NIC on any rank."""
    return [min(channel) for channel in zip(*rates_bps, strict=True)]


def _sending_half(site: RankEndpointContext, port: Port) -> _Half:
    options = site.options
    connections = [
        port.connection(options.profile, sends=options.window + 1, receives=MAILBOX_SLOTS) for _ in range(options.qps)
    ]
    return _Half(connections, [site.buffers.make([port], MAILBOX_BYTES)])


def _receiving_half(site: RankEndpointContext, port: Port, staged: bool) -> _Half:
    options = site.options
    connections = [
        port.connection(options.profile, sends=INLET_SENDS, receives=INLET_RECEIVES) for _ in range(options.qps)
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


def _routes(site: RankEndpointContext, to: Sequence[int]) -> dict[_QpPlace, int]:
    """Source port of every QP."""
    places = [
        _QpPlace(_Place(peer, channel), qp)
        for peer in to
        for channel in range(len(site.ports))
        for qp in range(site.options.qps)
    ]
    if site.options.paths == "ecmp" or not places:
        return dict.fromkeys(places, 0)
    flows = [flow_of(site, *place.place, place.qp) for place in places]
    site.routed.extend(flow.id for flow in flows)
    return dict(zip(places, site.process.rendezvous.route(flows), strict=True))


def flow_of(site: RankEndpointContext, peer: int, channel: int, qp: int) -> Flow:
    """What C4P is asked a path for: one QP of a connection."""
    nic = site.nics[channel]
    name = f"{site.process.job}/{site.comm}/{site.rank}>{peer}/{channel}.{qp}"
    return Flow(name, site.process.job, nic.name, site.members[peer].nics[channel], nic.rate_bps / site.options.qps)


def _outlet(
    site: RankEndpointContext, place: _Place, half: _Half, far: ReceivingEnd, routes: dict[_QpPlace, int]
) -> SendEndpoint:
    source, destination = site.nics[place.channel].name, site.members[place.peer].nics[place.channel]
    ways = []
    for index, (connection, remote) in enumerate(zip(half.connections, far.remotes, strict=True)):
        connection.connect(remote, routes[_QpPlace(place, index)], receives=MAILBOX_SLOTS)
        name = ConnName(site.record, place.peer, source, destination, connection.qp_num)
        ways.append(
            WeightedQp(connection, site.recorder.connection(name, connection.source_port, site.options.clock_ns()))
        )
    return MultiQpSendEndpoint(place.peer, ways, half.buffers[0], far)


def _inlet(site: RankEndpointContext, place: _Place, half: _Half, far: SendingEnd) -> ReceiveEndpoint:
    source, destination = site.members[place.peer].nics[place.channel], site.nics[place.channel].name
    records = []
    for connection, remote in zip(half.connections, far.remotes, strict=True):
        connection.connect(remote, receives=INLET_RECEIVES)
        records.append(site.recorder.arrivals(ConnName(site.record, place.peer, source, destination, remote.qp)))
    staging = half.buffers[1] if len(half.buffers) > 1 else None
    return MultiQpReceiveEndpoint(place.peer, half.connections, half.buffers[0], staging, far, records)
