"""Brings up the directed connections of a communicator, agreed by all ranks through the rendezvous."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from c4bench.collective.ends import INLET_RECEIVES, INLET_SENDS, Inlet, Outlet
from c4bench.collective.memory import Buffer
from c4bench.collective.options import Options
from c4bench.collective.recorder import ConnName, Recorder
from c4bench.collective.rendezvous import Rendezvous
from c4bench.collective.wire import MAILBOX_BYTES, MAILBOX_SLOTS, Hello, ReceivingEnd, SendingEnd
from c4bench.model.fabric import Flow, Nic
from c4bench.model.telemetry import Member
from c4bench.verbs.transport import Connection, Port, Remote


@dataclass(frozen=True)
class Site:
    """Where a rank stands: what wiring needs to know about its communicator. `routed` flows hold planned paths."""

    comm: str
    job: str
    rank: int
    members: tuple[Member, ...]
    nics: tuple[Nic, ...]
    ports: tuple[Port, ...]
    recorder: Recorder
    record: int
    rendezvous: Rendezvous
    options: Options
    routed: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def exchange(self, key: str, payload: bytes) -> list[bytes]:
        """All-gather under a key of this communicator."""
        key = f"{self.job}/{self.comm}/{key}"
        return self.rendezvous.exchange(key, self.rank, self.size, payload, self.options.timeout_s)


@dataclass
class _Half:
    """An end that is made but not connected. `buffers` are the mailbox, or the outbox and any staging."""

    connection: Connection
    buffers: list[Buffer] = field(default_factory=list)


class _Place(NamedTuple):
    """A connection of this rank: to or from which rank, on which channel."""

    peer: int
    channel: int


_Halves = dict[int, list[_Half]]


def wire(
    site: Site, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool
) -> tuple[dict[int, list[Outlet]], dict[int, list[Inlet]]]:
    """Connect to the ranks `to` and from the ranks `back`; returns the ends by peer, in the order of channels.

    Every rank calls this with the same `key` and with matching peers. With `staged` the inlets get staging memory.
    """
    sending = {peer: [_sending_half(site, port) for port in site.ports] for peer in to}
    receiving = {peer: [_receiving_half(site, port, staged) for port in site.ports] for peer in back}
    hello = msgspec.msgpack.encode(_hello(site, sending, receiving))
    hellos = [msgspec.msgpack.decode(raw, type=Hello) for raw in site.exchange(key, hello)]
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
    site.exchange(f"{key}/up", b"")
    return outlets, inlets


def _sending_half(site: Site, port: Port) -> _Half:
    options = site.options
    connection = port.connection(options.profile, sends=options.window + 1, receives=MAILBOX_SLOTS)
    return _Half(connection, [Buffer(port, MAILBOX_BYTES)])


def _receiving_half(site: Site, port: Port, staged: bool) -> _Half:
    connection = port.connection(site.options.profile, sends=INLET_SENDS, receives=INLET_RECEIVES)
    sizes = [MAILBOX_BYTES, site.options.staging_bytes] if staged else [MAILBOX_BYTES]
    return _Half(connection, [Buffer(port, size) for size in sizes])


def _hello(site: Site, sending: _Halves, receiving: _Halves) -> Hello:
    gids = [port.gid for port in site.ports]
    return Hello(
        {
            peer: [
                SendingEnd(Remote(gid, half.connection.qp_num), half.buffers[0].address, half.buffers[0].region.rkey)
                for gid, half in zip(gids, halves, strict=True)
            ]
            for peer, halves in sending.items()
        },
        {
            peer: [
                ReceivingEnd(
                    Remote(gid, half.connection.qp_num), half.buffers[-1].address, half.buffers[-1].region.rkey
                )
                for gid, half in zip(gids, halves, strict=True)
            ]
            for peer, halves in receiving.items()
        },
    )


def _routes(site: Site, to: Sequence[int]) -> dict[_Place, int]:
    """Source port by place."""
    places = [_Place(peer, channel) for peer in to for channel in range(len(site.ports))]
    if site.options.paths == "ecmp" or not places:
        return dict.fromkeys(places, 0)
    flows = [_flow(site, place) for place in places]
    site.routed.extend(flow.id for flow in flows)
    return dict(zip(places, site.rendezvous.route(flows), strict=True))


def _flow(site: Site, place: _Place) -> Flow:
    nic = site.nics[place.channel]
    name = f"{site.job}/{site.comm}/{site.rank}>{place.peer}/{place.channel}"
    return Flow(name, site.job, nic.name, site.members[place.peer].nics[place.channel], nic.rate_bps)


def _outlet(site: Site, place: _Place, half: _Half, far: ReceivingEnd, routes: dict[_Place, int]) -> Outlet:
    half.connection.connect(far.remote, routes[place], receives=MAILBOX_SLOTS)
    source, destination = site.nics[place.channel].name, site.members[place.peer].nics[place.channel]
    name = ConnName(site.record, place.peer, source, destination, half.connection.qp_num)
    record = site.recorder.connection(name, half.connection.source_port, site.options.clock_ns())
    return Outlet(place.peer, half.connection, half.buffers[0], far, record)


def _inlet(site: Site, place: _Place, half: _Half, far: SendingEnd) -> Inlet:
    half.connection.connect(far.remote, receives=INLET_RECEIVES)
    source, destination = site.members[place.peer].nics[place.channel], site.nics[place.channel].name
    name = ConnName(site.record, place.peer, source, destination, half.connection.qp_num)
    staging = half.buffers[1] if len(half.buffers) > 1 else None
    return Inlet(place.peer, half.connection, half.buffers[0], staging, far, site.recorder.arrivals(name))
