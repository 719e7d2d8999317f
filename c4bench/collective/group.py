"""Connected members of a communicator, and the operations among them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import msgspec
import numpy as np

from c4bench.collective import hierarchical, relays, schedule, tree
from c4bench.collective.arrays import Reducing
from c4bench.collective.channel_order import from_rank, has_gpus, hosts
from c4bench.collective.channel_transfer import (
    ChannelSplit,
    ChannelTransfer,
    ChunkedShare,
    Ends,
    Memory,
    RegisteredArray,
    transfer,
)
from c4bench.collective.edges import PeerRails
from c4bench.collective.endpoint_context import Edges, RankEndpointContext, RankProcess, open_site, used_nics
from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.engine import EndOnFailure, Engine, ResilienceCounters
from c4bench.collective.errors import CollectiveError, FailureGuard
from c4bench.collective.handshake import Signature
from c4bench.collective.inside import InsideReceiver, InsideSender
from c4bench.collective.memory import INSIDE, Array, NicBuffer, Registrations, pages
from c4bench.collective.operation import Operation
from c4bench.collective.options import Options
from c4bench.collective.pacer import Pacer, RateControl
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.schedule import Plan, Sides, Span, among
from c4bench.collective.wiring import Wiring
from c4bench.cost.all_reduce import ALL_REDUCES, GpuHosts, fastest
from c4bench.model.fabric import Inside
from c4bench.model.telemetry import Member
from c4bench.verbs.waiting import waiter

End = TypeVar("End", SendEndpoint, ReceiveEndpoint)
# A rank's part of a ring collective, by rank, size and number of chunks.
Planner = Callable[[int, int, int], Plan]
# The rank that has the first place of a ring in this order.
FirstRank = Callable[[Sequence[int]], int]
_NOTHING = np.empty(0, np.uint8)
_decode_inside = msgspec.msgpack.Decoder(tuple[float, float]).decode


class Group:
    """Members connected as a ring, or, if not `closed`, as a chain from rank 0, which cannot reduce.

    Raises CollectiveError when it cannot be connected, and notifies the other ranks.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        members: Sequence[Member],
        process: RankProcess,
        options: Options,
        *,
        closed: bool = True,
    ) -> None:
        nics = used_nics(members, process.nics, options)
        self.name, self.rank, self.size = name, rank, len(members)
        self.guard = FailureGuard(name, rank, process.rendezvous)
        self._before_operation = process.before_operation
        self._seq = 0
        self._registrations: list[Registrations] = []
        with ExitStack() as undo, self.guard.during("connecting"):
            process.rendezvous.enter(name, [member.seat for member in members])
            undo.callback(process.rendezvous.leave, name)
            failure_signal = process.rendezvous.failure_signal(name)
            undo.callback(failure_signal.close)
            # Memory goes after the connections: a peer that still writes here gets no answer then, not an access error.
            undo.callback(self._deregister)
            site = open_site(undo, name, rank, members, process, options, nics)
            self.site = site.with_qps(closed=closed)
            self.options = self.site.options
            self._registrations += [Registrations(port) for port in self.site.ports]
            self._engine = _engine(self.site, failure_signal)
            undo.callback(self._engine.close)
            self._wiring = Wiring(self.site, self._engine)
            # This rank's ends by peer and channel: of the ring, and of other edges once these are connected.
            self._senders: dict[int, dict[int, SendEndpoint]] = {}
            self._receivers: dict[int, dict[int, ReceiveEndpoint]] = {}
            self._connected: set[str] = set()
            # The split over all channels, by their rates.
            self.default_split = self._split_by_rate([nic.rate_bps for nic in nics])
            if self.size > 1:
                self._wire_ring(closed=closed)
            self._controls: dict[int, RateControl] = {}
            self._shape: GpuHosts | None = None
            self._spare = _NOTHING
            self._plain = tuple(range(self.size))
            self._undo = undo.pop_all()

    def _deregister(self) -> None:
        for registrations in self._registrations:
            registrations.close()

    def _wire_ring(self, *, closed: bool) -> None:
        rates_bps = self._connect("ring", *self.site.ring_edges(closed=closed), staged=closed)
        self.default_split = self._split_by_rate(rates_bps)

    def _connect(self, key: str, to: Edges, back: Edges, *, staged: bool) -> list[float]:
        """Connect edges to and from these ranks, on all ranks under the same key; returns the channels' rates."""
        senders, receivers, rates_bps = self._wiring.wire(key, to, back, staged=staged)
        for peer, sending in senders.items():
            self._senders.setdefault(peer, {}).update(sending)
        for peer, receiving in receivers.items():
            self._receivers.setdefault(peer, {}).update(receiving)
        self._connected.add(key)
        return rates_bps

    def _split_by_rate(self, rates_bps: Sequence[float]) -> ChannelSplit:
        used = self.site.channels
        weights = tuple(max(1, round(rate)) if channel in used else 0 for channel, rate in enumerate(rates_bps))
        slowest_bps = min(rates_bps[channel] for channel in used)
        # A rank with a GPU has the messages of one NIC, which are too few to be spread evenly by chance.
        others = len(self.site.ports) - 1 if self.options.resilient and has_gpus(self.site.members) else 1
        return ChannelSplit(weights, self.options.chunk_for(slowest_bps), self.options.window, max(1, others))

    def _connect_reduce(self, algorithm: str) -> None:
        """Connect the edges of an all-reduce that is no ring; the first call does it.

        They need staging memory, which those of other pairs do not have, so they come first.
        """
        if algorithm not in self._connected:
            to, back = self.site.tree_edges() if algorithm == "tree" else self.site.rail_edges()
            self._connect(algorithm, _without(to, self._senders), _without(back, self._receivers), staged=True)

    def _connect_relays(self) -> None:
        """Connect the edges of an all-to-all by relays; the first call does it."""
        if "relays" not in self._connected:
            self._connect_reduces()
            to, back = self.site.relay_edges()
            self._connect("relays", _without(to, self._senders), _without(back, self._receivers), staged=False)

    def _connect_all(self) -> None:
        """Connect the pairs of ranks that are not connected; the first call does it."""
        if "pairs" not in self._connected:
            self._connect_reduces()
            to, back = self.site.pair_edges()
            self._connect("pairs", _missing(to, self._senders), _missing(back, self._receivers), staged=False)

    def _connect_reduces(self) -> None:
        for algorithm in self._algorithms[1:]:
            self._connect_reduce(algorithm)

    def sender(self, peer: int, channel: int) -> SendEndpoint:
        """The sending endpoint to `peer` on a channel. Raises LookupError if there is none."""
        for sender in self._engine.edges.senders():
            if (sender.peer, sender.channel) == (peer, channel):
                return sender
        raise LookupError(f"rank {self.rank} of {self.name} sends nothing to rank {peer} on channel {channel}")

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        """An array on pages of its own, zeroed, registered with all NICs until the communicator is closed."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape))
        with self.guard.during("allocating"):
            memory = pages(max(1, count * kind.itemsize))
            for registrations in self._registrations:
                registrations.keep(memory)
        return memory[: count * kind.itemsize].view(kind).reshape(shape)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.ring(Signature("barrier", "", "", 0, 0), _NOTHING, [(0, 0)], schedule.barrier)

    def ring(
        self,
        signature: Signature,
        array: Array,
        segments: list[Span],
        plan: Planner,
        reducing: Reducing | None = None,
        channel_split: ChannelSplit | None = None,
        first: int | FirstRank = 0,
    ) -> None:
        """Run a ring schedule over a flat array cut into `segments`; without a `channel_split` by the default one.

        Rank `first` has the first place in it, or the rank that it gives for the order of a channel. A segment for each
        place is that of the rank that has it.
        """
        self._check(signature.kind)
        if self.size == 1:
            return
        with self.guard.during(signature.kind, self._seq):
            self._run(
                signature,
                "ring",
                channel_split or self.default_split,
                segments,
                lambda channel, part: self._ring_plan(plan, channel, part, first),
                (array, array),
                reducing=reducing,
            )

    def _ring_plan(self, plan: Planner, channel: int, part: ChunkedShare, first: int | FirstRank) -> Plan:
        """A ring schedule in the order of a channel's ring."""
        order = self.site.orders[channel]
        order = from_rank(order, first if isinstance(first, int) else first(order))
        made = plan(order.index(self.rank), self.size, part.chunks)
        return made if order == self._plain else among(made, order, owned=len(part.segments) == self.size)

    def all_reduce(self, signature: Signature, array: Array, reducing: Reducing) -> None:
        """All-reduce a flat array by the algorithm of the options."""
        algorithm = self._algorithm(array.nbytes)
        if algorithm == "ring":
            self.ring(signature, array, schedule.split(array.size, self.size), schedule.all_reduce, reducing)
            return
        self._check(signature.kind)
        self._synchronize_before(algorithm, signature)
        with self.guard.during(signature.kind, self._seq):
            self._connect_reduce(algorithm)
            if algorithm == "tree":
                self._tree(signature, array, reducing)
            else:
                self._hierarchical(signature, array, reducing)

    def _algorithm(self, size_bytes: int) -> str:
        """The algorithm of an all-reduce, on all ranks the same."""
        if self.options.algorithm != "auto" or self.size == 1:
            return self._algorithms[-1]
        self._shape = self._shape or self._agree_on_shape()
        return fastest(size_bytes, self._shape, self._algorithms)

    @property
    def _algorithms(self) -> list[str]:
        """The algorithms that all-reduces may use: a ring, and those of the options that are possible."""
        wanted = ALL_REDUCES if self.options.algorithm == "auto" else ("ring", self.options.algorithm)
        able = ("ring", "tree", "hierarchical") if self.site.rails else ("ring", "tree")
        return [name for name in dict.fromkeys(wanted) if name in able] if self.size > 1 else ["ring"]

    def _agree_on_shape(self) -> GpuHosts:
        """What the choice of an algorithm depends on; the slowest inside of any host counts."""
        place = self.site.process.inside
        inside = place.inside if place else Inside()
        own = msgspec.msgpack.encode((inside.rate_bps, inside.delay_s))
        self.guard.check("all_reduce", self._seq)
        with self.guard.during("all_reduce", self._seq):
            rates, delays = zip(*map(_decode_inside, self.site.exchange("inside", own)), strict=True)
        nics = self.default_split.weights
        ranks = hosts(self.site.members)
        used_bps = sum(nics) / sum(map(bool, nics)) * (1 if has_gpus(self.site.members) else len(self.site.channels))
        return GpuHosts(
            len(ranks),
            max(map(len, ranks)),
            used_bps,
            min(rate or float("inf") for rate in rates),
            inside_hop_s=max(delays),
        )

    def _tree(self, signature: Signature, array: Array, reducing: Reducing) -> None:
        self._run(
            signature,
            "tree",
            self.default_split.finer(array.nbytes // 2, tree.CHUNKS),
            schedule.split(array.size, 2),
            lambda channel, part: tree.all_reduce(self.rank, self.site.trees[channel], part.chunks),
            (array, array),
            reducing=reducing,
        )

    def _hierarchical(self, signature: Signature, array: Array, reducing: Reducing) -> None:
        whole = self.default_split._replace(weights=(1,))
        self._run(
            signature,
            "hierarchical",
            whole.finer(array.nbytes // self.size, hierarchical.CHUNKS),
            schedule.split(array.size, self.size),
            lambda _, part: hierarchical.all_reduce(self.rank, self.site.rails, part.chunks),
            (array, array),
            reducing=reducing,
            ends=lambda _: self._rail_ends(),
        )

    def all_to_all(self, signature: Signature, source: Array, target: Array) -> None:
        """Run an all-to-all over flat arrays of equal parts: by relays where hosts have rails, else by linear shift."""
        self._check(signature.kind)
        if self.size == 1:
            return
        relayed = relays.consecutive(self.site.rails) if self.site.rails else False
        key = "relays" if relayed else "pairs"
        self._synchronize_before(key, signature)
        with self.guard.during(signature.kind, self._seq):
            if relayed:
                self._relay(signature, source, target)
                return
            self._connect_all()
            # From a rank with a GPU all goes by its own NIC.
            gpus = has_gpus(self.site.members)
            self._run(
                signature,
                "shift",
                self.default_split._replace(weights=(1,)) if gpus else self.default_split,
                schedule.split(source.size, self.size),
                lambda _, part: schedule.all_to_all(self.rank, self.size, part.chunks),
                (source, target),
                ends=self._pair_ends if gpus else self._ends,
            )

    def _relay(self, signature: Signature, source: Array, target: Array) -> None:
        """An all-to-all by relays. The scratch memory has a row for each rank of the other hosts."""
        self._connect_relays()
        hosts, block = self.site.rails, source.size // self.size
        scratch = self._scratch(source)
        ranks = next(ranks for ranks in hosts if self.rank in ranks)
        for there in hosts:
            row, own = min(there) + self.rank - min(ranks), there[ranks.index(self.rank)]
            np.copyto(scratch[row * block : (row + 1) * block], source[own * block : (own + 1) * block])
        whole = self.default_split._replace(weights=(1,))
        rows = [(min(there) * block, (min(there) + len(there)) * block) for there in hosts]
        ((_, part),) = whole.cuts(schedule.split(source.size, self.size), source)
        count = relays.row_chunks(len(ranks), part.chunks, block * source.itemsize, whole.chunk_bytes)
        self._run(
            signature,
            "pxn",
            whole,
            part.whole,
            lambda _, part: relays.all_to_all(self.rank, hosts, part.chunks, count),
            (source, target),
            scratch,
            block,
            ends=lambda _: self._ends_on(*self.site.relay_edges()),
            relayed=ChunkedShare(rows, count, rows),
        )

    def _scratch(self, like: Array) -> Array:
        """Memory like an array's, reused as long as it is large enough."""
        if self._spare.nbytes < like.nbytes:
            self._spare = np.empty(like.nbytes, np.uint8)
        return self._spare[: like.nbytes].view(like.dtype)

    def fold(
        self,
        signature: Signature,
        array: Array,
        scratch: Array,
        sides: Sides,
        reducing: Reducing,
        channel_split: ChannelSplit,
    ) -> None:
        """Add the degraded ranks' arrays to the healthy ranks' sums; all ranks get the result.

        `scratch` must have room for the longest segment from each degraded rank.
        """
        self._check(signature.kind)
        self._synchronize_before("pairs", signature)
        with self.guard.during(signature.kind, self._seq):
            self._connect_all()
            self._run(
                signature,
                "fold",
                channel_split,
                schedule.split(array.size, len(sides.healthy)),
                lambda _, part: schedule.fold_directly(self.rank, sides, part.chunks),
                (array, array),
                scratch,
                scratch.size // len(sides.degraded),
                reducing=reducing,
            )

    def _synchronize_before(self, key: str, signature: Signature) -> None:
        """Before more edges are connected, check over the ring that all ranks have entered the same operation."""
        if key not in self._connected:
            self.ring(signature, _NOTHING, [(0, 0)], schedule.barrier)

    def _nic_buffers(self, array: Array, ends: Iterable[SendEndpoint | ReceiveEndpoint]) -> RegisteredArray:
        """A flat array as each NIC addresses it that these endpoints may use; registers it if needed.

        Raises MemoryError.
        """
        nics = sorted({nic for end in ends for nic in end.nics})
        return RegisteredArray(array, {nic: self._nic_buffer(array, nic) for nic in nics})

    def _nic_buffer(self, array: Array, nic: int) -> NicBuffer:
        if not array.nbytes:
            return NicBuffer(0, 0, 0)
        return NicBuffer(array.ctypes.data, 0, 0) if nic == INSIDE else self._registrations[nic].buffer(array)

    def _check(self, kind: str) -> None:
        self._before_operation()
        self.guard.check(kind, self._seq)

    def _run(
        self,
        signature: Signature,
        algorithm: str,
        channel_split: ChannelSplit,
        segments: Sequence[Span],
        plan: Callable[[int, ChunkedShare], Plan],
        arrays: tuple[Array, Array],
        scratch: Array = _NOTHING,
        row_items: int = 0,
        *,
        reducing: Reducing | None = None,
        ends: Callable[[int], Ends] | None = None,
        relayed: ChunkedShare | None = None,
    ) -> None:
        """Run a plan for each channel's share of the `segments` of two flat arrays: of what is sent, and of results."""
        transfers = []
        for channel, part in channel_split.cuts(segments, arrays[0]):
            made, reached = plan(channel, part), (ends or self._ends)(channel)
            senders, receivers = reached.of(made)
            memory = Memory(
                self._nic_buffers(arrays[0], senders),
                self._nic_buffers(arrays[1], receivers),
                self._nic_buffers(scratch, [*senders, *receivers]),
                row_items,
                relayed,
            )
            each = transfer(
                made,
                part,
                memory,
                reached,
                reducing=reducing,
                staging_bytes=self.options.staging_bytes,
                window=channel_split.window,
            )
            each.pacer = self._pacer(senders)
            transfers.append(each)
        self._run_transfers(signature, algorithm, transfers)

    def _ends(self, channel: int) -> Ends:
        """The edges of a channel."""
        senders = {peer: ends[channel] for peer, ends in self._senders.items() if channel in ends}
        return Ends(senders, {peer: ends[channel] for peer, ends in self._receivers.items() if channel in ends})

    def _pair_ends(self, _: int) -> Ends:
        """The edges to and from all other ranks, each on the channel of its pair."""
        return self._ends_on(*self.site.pair_edges())

    def _ends_on(self, to: Edges, back: Edges) -> Ends:
        """Edges of one channel each."""
        return Ends(
            {peer: _on(self._senders[peer], channel) for peer, (channel,) in to.items()},
            {peer: _on(self._receivers[peer], channel) for peer, (channel,) in back.items()},
        )

    def _rail_ends(self) -> Ends:
        """The edges of a hierarchical all-reduce; the second one inside has a number higher by the number of ranks."""
        to, back = self.site.rail_edges()
        return Ends(
            {
                peer + edge * self.size: self._senders[peer][channel]
                for peer, channels in to.items()
                for edge, channel in enumerate(channels)
            },
            {
                peer + edge * self.size: self._receivers[peer][channel]
                for peer, channels in back.items()
                for edge, channel in enumerate(channels)
            },
        )

    def _run_transfers(self, signature: Signature, algorithm: str, transfers: list[ChannelTransfer]) -> None:
        now_ns = self.options.clock_ns()
        record = self.site.recorder.operation(
            self.site.record, self._seq, signature.kind, algorithm, signature.dtype, signature.size_bytes, now_ns
        )
        self._engine.run(Operation(self.name, self.rank, signature, transfers, record), now_ns)
        self._seq += 1

    def _pacer(self, senders: Sequence[SendEndpoint]) -> Pacer | None:
        """A pacer for connections of several QPs, which could post more than their NIC sends; one QP needs none.

        All `senders` use the same NIC; if some are inside the host, nothing is paced. Packets that may be marked are
        sent at the rate that notices of marks allow.
        """
        if not senders or any(INSIDE in sender.nics for sender in senders):
            return None
        channel = senders[0].channel
        marked = self.site.nics[channel].ecn
        if self.options.resilient or (self.options.qps == 1 and not marked):
            return None
        rate_bps = self.default_split.weights[channel]
        control = self._controls.setdefault(channel, RateControl(rate_bps)) if marked else None
        return Pacer(rate_bps, self.options.window, control)

    @property
    def resilience(self) -> ResilienceCounters | None:
        """Counters of resilience; None when it is off."""
        return self._engine.failures.resilience

    @property
    def lost(self) -> frozenset[int]:
        """The channels whose NICs this rank has lost; all of them if it has connections inside its host only."""
        if not any(edge.rails for edge in self._engine.edges.all):
            return frozenset(range(len(self.site.ports)))
        return self._engine.failures.lost

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        self.guard.broken = True
        self._undo.close()


class SubGroup(Group):
    """Some `ranks` of a communicator (`whole`), connected as a ring in this order; its failures are the communicator's.

    Each of the ranks must make it, with the same name. Raises CollectiveError when it cannot be connected.
    """

    def __init__(
        self, whole: Group, name: str, ranks: Sequence[int], members: Sequence[Member], process: RankProcess
    ) -> None:
        self._whole = whole
        self._ranks = tuple(ranks)
        placed = [msgspec.structs.replace(members[rank], rank=place) for place, rank in enumerate(ranks)]
        with whole.guard.during("connecting"):
            super().__init__(f"{whole.name}/{name}", self._ranks.index(whole.rank), placed, process, whole.options)

    def ring(
        self,
        signature: Signature,
        array: Array,
        segments: list[Span],
        plan: Planner,
        reducing: Reducing | None = None,
        channel_split: ChannelSplit | None = None,
        first: int | FirstRank = 0,
    ) -> None:
        """See Group. A CollectiveError names ranks of the communicator, and ends that one's operation as well."""
        try:
            super().ring(signature, array, segments, plan, reducing, channel_split, first)
        except CollectiveError as error:
            peer = self._ranks[error.peer] if error.peer >= 0 else -1
            seen = error.seen_by(self._whole.name, self._whole.rank, signature.kind, peer)
            self._whole.guard.abandon(seen)
            raise seen from error


def _missing(edges: Edges, ends: Mapping[int, Mapping[int, object]]) -> dict[int, list[int]]:
    """The edges to or from ranks that no channel leads to yet, or that use a NIC which none does."""
    inside = {
        peer
        for peer, known in ends.items()
        if any(isinstance(end, (InsideSender, InsideReceiver)) for end in known.values())
    }
    return {peer: channels for peer, channels in _without(edges, ends).items() if peer not in inside}


def _without(edges: Edges, ends: Mapping[int, Mapping[int, object]]) -> dict[int, list[int]]:
    """The edges that are not connected yet."""
    missing = {
        peer: [channel for channel in channels if channel not in ends.get(peer, ())] for peer, channels in edges.items()
    }
    return {peer: channels for peer, channels in missing.items() if channels}


def _on(ends: Mapping[int, End], channel: int) -> End:
    """The end on a channel; inside a host any will do."""
    return ends.get(channel) or next(iter(ends.values()))


def _engine(site: RankEndpointContext, failure_signal: FailureSignal) -> Engine:
    edges, ready = PeerRails(), waiter(site.options.completions, site.ports)
    if not site.options.resilient:
        return Engine(site.options, edges, ready, EndOnFailure(ready, failure_signal))
    from c4bench.collective.migration import MigrateOnFailure  # noqa: PLC0415  (few ranks need it: ADR 0005)

    return Engine(site.options, edges, ready, MigrateOnFailure(site, edges, ready, failure_signal))
