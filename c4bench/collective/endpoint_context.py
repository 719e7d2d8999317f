"""What a rank has of a communicator: its process, members, open NICs, record, and the control plane."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import msgspec

from c4bench.collective import tree
from c4bench.collective.channel_order import (
    chains,
    gpus_of,
    has_gpus,
    inside,
    pair_channel,
    rails,
    ring_order,
    used_channels,
)
from c4bench.collective.errors import CollectiveError
from c4bench.collective.handshake import EndpointAddresses
from c4bench.collective.inside import InsidePlace
from c4bench.collective.memory import Buffers
from c4bench.collective.options import Options
from c4bench.collective.recorder import NullRecorder, Recorder
from c4bench.collective.rendezvous import AbsentError, FailedError, Rendezvous
from c4bench.collective.ring_layout import MAX_RANKS
from c4bench.collective.schedule import shift
from c4bench.errors import UsageError
from c4bench.model.fabric import ASK_QPS, USUAL_QPS, Flow, Nic
from c4bench.model.qp_address import QpAddress
from c4bench.model.telemetry import CommRecord, Member
from c4bench.verbs.transport import Port


def open_device(nic: Nic) -> Port:
    """Open a NIC through verbs. The import is late because everything else works without pyverbs."""
    from c4bench.verbs.device import Device  # noqa: PLC0415

    return Device(nic)


@dataclass(frozen=True)
class RankProcess:
    """Channel c of a communicator uses the c-th of `nics`; `open_port` opens one.

    `before_operation` is called before every operation. Ranks of a host that have a GPU each meet at `inside`.
    """

    job: str
    nics: tuple[Nic, ...]
    rendezvous: Rendezvous
    recorder: Recorder
    open_port: Callable[[Nic], Port] = open_device
    before_operation: Callable[[], None] = lambda: None
    inside: InsidePlace | None = None


# Built at import: msgspec 0.22 has crashed when two threads decoded a type for the first time at once.
_decode_hello = msgspec.msgpack.Decoder(EndpointAddresses).decode
_decode_qps = msgspec.msgpack.Decoder(int).decode


# The channels of edges, by the rank at their other end.
Edges = Mapping[int, Sequence[int]]


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

    def hellos(self, key: str, hello: EndpointAddresses) -> list[EndpointAddresses]:
        """Exchange hellos. Also raises CollectiveError `MISMATCH`, if ranks disagree about `resilient`."""
        hellos = [_decode_hello(raw) for raw in self.exchange(key, msgspec.msgpack.encode(hello))]
        modes = [each.resilient for each in hellos]
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

    def route(self, qps: Mapping[QpAddress, int]) -> list[int]:
        """Ask C4P for the paths of QPs; returns their source ports and notes them in `routed`.

        `qps` has the number of the far end's QP of each.
        """
        routed = [RoutedQp(address, self._flow(address)) for address in qps]
        self.routed.extend(routed)
        flows, rendezvous = [qp.flow for qp in routed], self.process.rendezvous
        ports = rendezvous.route(flows)
        return rendezvous.route_qps(flows, list(qps.values())) if ASK_QPS in ports else ports

    def _flow(self, address: QpAddress) -> Flow:
        job, nic = self.process.job, self.nics[address.channel]
        destination = self.members[address.peer].nics[address.channel]
        return Flow(address.flow_id(job), job, nic.name, destination, nic.rate_bps / self.options.qps)

    def with_qps(self, *, closed: bool) -> "RankEndpointContext":
        """The same site, with a number of QPs in its options and a window for them.

        If the options leave the number open, it is the largest that C4P gives to any rank. Each rank asks about the
        connections to its neighbour in the ring, or in the chain if not `closed`. A ring crosses every part of the
        fabric that lies between its ranks, so no further pairs need to be learnt. With ECMP the number is the usual
        one. Raises CollectiveError as `exchange` does.
        """
        options = self.options
        qps = options.qps or USUAL_QPS
        if not options.qps and options.paths == "planned" and self.size > 1:
            qps = max(map(_decode_qps, self.exchange("ring/qps", msgspec.msgpack.encode(self._asked_qps(closed)))))
        return replace(self, options=options.with_qps(qps))

    def _asked_qps(self, closed: bool) -> int:
        """What C4P answers about this rank's own connections; the usual number if it sends to none."""
        to, _ = self.ring_edges(closed=closed)
        pairs = [
            (self.nics[channel].name, self.members[peer].nics[channel])
            for peer, channels in to.items()
            if not self.inside(peer)
            for channel in channels
        ]
        return self.process.rendezvous.choose_qps(pairs) if pairs else USUAL_QPS

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """The channels that carry data."""
        return used_channels(self.members, len(self.nics))

    @cached_property
    def orders(self) -> dict[int, tuple[int, ...]]:
        """The order in which each channel's ring passes the ranks, from rank 0 on."""
        return {channel: ring_order(self.members, channel) for channel in self.channels}

    @cached_property
    def trees(self) -> dict[int, tuple[tree.Parents, tree.Parents]]:
        """The two trees of each channel."""
        return {channel: tree.over_chains(chains(self.members, channel)) for channel in self.channels}

    @cached_property
    def rails(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host in the order of their NICs; none where hosts have no rails in common for all ranks."""
        own = {gpu.nic for gpu in gpus_of(self.members)}
        return rails(self.members) if own <= set(self.channels) else ()

    def inside(self, peer: int) -> bool:
        """Whether a rank is reached inside this host, not through its NICs."""
        return inside(self.members[self.rank], self.members[peer])

    def ring_edges(self, *, closed: bool) -> tuple[Edges, Edges]:
        """The edges to and from this rank's neighbours in the rings, or in the chains from rank 0 if not `closed`."""
        to: dict[int, list[int]] = {}
        back: dict[int, list[int]] = {}
        for channel, order in self.orders.items():
            at = order.index(self.rank)
            if closed or at < self.size - 1:
                to.setdefault(order[(at + 1) % self.size], []).append(channel)
            if closed or at:
                back.setdefault(order[at - 1], []).append(channel)
        return to, back

    def tree_edges(self) -> tuple[Edges, Edges]:
        """The edges to and from this rank's neighbours in the trees: both ways."""
        near: dict[int, list[int]] = {}
        for channel, trees in self.trees.items():
            for peer in tree.neighbours(trees, self.rank):
                near.setdefault(peer, []).append(channel)
        return near, near

    def rail_edges(self) -> tuple[Edges, Edges]:
        """The edges of a hierarchical all-reduce: to and from neighbours on the rail, and inside the host, two each."""
        ranks = next(ranks for ranks in self.rails if self.rank in ranks)
        place, host = ranks.index(self.rank), self.rails.index(ranks)
        right, left = (self.rails[(host + step) % len(self.rails)][place] for step in (1, -1))
        own = [gpus_of(self.members)[self.rank].nic]
        to: dict[int, list[int]] = {right: own}
        back: dict[int, list[int]] = {left: own}
        if len(ranks) > 1:
            to[ranks[(place + 1) % len(ranks)]] = self.inside_channels(self.rank)
            back[ranks[place - 1]] = self.inside_channels(ranks[place - 1])
        return to, back

    def relay_edges(self) -> tuple[Edges, Edges]:
        """The edges of an all-to-all by relays: to and from the ranks of this host, and those on the rail."""
        ranks = next(ranks for ranks in self.rails if self.rank in ranks)
        place, own = ranks.index(self.rank), (gpus_of(self.members)[self.rank].nic,)
        near = {rank: self.channels[:1] for rank in ranks if rank != self.rank}
        far = {there[place]: own for there in self.rails if there is not ranks}
        return near | far, near | far

    def inside_channels(self, source: int) -> list[int]:
        """Two channels of edges from a rank to others of its host: those that its ring uses, if these are enough."""
        own = gpus_of(self.members)[source].nic
        return [*(channel for channel in self.channels if channel != own), own][:2]

    def pair_edges(self) -> tuple[Edges, Edges]:
        """The edges to and from every other rank, in the order of an all-to-all."""
        to: dict[int, list[int]] = {}
        back: dict[int, list[int]] = {}
        for right, left in shift(self.rank, self.size):
            to[right], back[left] = self._pair_channels(self.rank), self._pair_channels(left)
        return to, back

    def _pair_channels(self, source: int) -> list[int]:
        """The channels of the edges from a rank to ranks that it is no neighbour of."""
        if not has_gpus(self.members):
            return list(self.channels)
        return [pair_channel(self.members, source, self.channels)]


def used_nics(members: Sequence[Member], nics: Sequence[Nic], options: Options) -> tuple[Nic, ...]:
    """The NICs of this rank that become channels. Raises UsageError if members have too few NICs, or are too many."""
    most = min([len(nics), *(len(member.nics) for member in members)])
    channels = options.channels or most
    if not 0 < channels <= most:
        raise UsageError(f"{channels} channels need as many NICs on every member; the least has {most}")
    if len(members) > MAX_RANKS:
        raise UsageError(f"{len(members)} ranks; a communicator records at most {MAX_RANKS}")
    return tuple(nics[:channels])


def open_site(
    undo: ExitStack,
    name: str,
    rank: int,
    members: Sequence[Member],
    process: RankProcess,
    options: Options,
    nics: tuple[Nic, ...],
) -> RankEndpointContext:
    """Open the NICs and the record; `undo` closes them, and releases the paths planned since."""
    buffers = Buffers()
    undo.callback(buffers.close)
    ports = tuple(_opened(undo, process.open_port(nic)) for nic in nics)
    recording = process.recorder if options.record else NullRecorder()
    index = recording.communicator(CommRecord(name, process.job, tuple(members)), rank)
    undo.callback(recording.release, index)
    site = RankEndpointContext(
        name, rank, tuple(members), process, nics, ports, recording, index, options, buffers=buffers
    )
    undo.callback(_release_routes, site)
    return site


def _opened(undo: ExitStack, port: Port) -> Port:
    undo.callback(port.close)
    return port


def _release_routes(site: RankEndpointContext) -> None:
    if site.routed:
        site.process.rendezvous.release([qp.flow.id for qp in site.routed])
