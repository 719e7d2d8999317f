"""Connected members of a communicator, and the operations among them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec
import numpy as np

from c4bench.collective import schedule, tree
from c4bench.collective.arrays import Reducing
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
from c4bench.collective.endpoint_context import RankEndpointContext, RankProcess, open_site, used_nics
from c4bench.collective.endpoints import ReceiveEndpoint, SendEndpoint
from c4bench.collective.engine import EndOnFailure, Engine, ResilienceCounters
from c4bench.collective.errors import CollectiveError, FailureGuard
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array, NicBuffer, NicBuffers, Registrations
from c4bench.collective.operation import Operation
from c4bench.collective.options import Options
from c4bench.collective.pacer import Pacer, RateControl
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.schedule import Plan, Sides, Span
from c4bench.collective.wiring import Wiring
from c4bench.model.telemetry import Member
from c4bench.verbs.waiting import waiter

# A rank's part of a ring collective, by rank, size and number of chunks.
Planner = Callable[[int, int, int], Plan]
_NOTHING = np.empty(0, np.uint8)


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
            self._senders: dict[int, list[SendEndpoint]] = {}
            self._receivers: dict[int, list[ReceiveEndpoint]] = {}
            self._connected: set[str] = set()
            # Each channel's two trees.
            self._trees = [tree.over_chains([[rank] for rank in range(self.size)])] * len(nics)
            # The split over all channels, by their rates.
            self.default_split = self._split_by_rate([nic.rate_bps for nic in nics])
            if self.size > 1:
                self._wire_ring(closed=closed)
            self._controls: dict[int, RateControl] = {}
            self._undo = undo.pop_all()

    def _deregister(self) -> None:
        for registrations in self._registrations:
            registrations.close()

    def _wire_ring(self, *, closed: bool) -> None:
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        to = [right] if closed or right else []
        back = [left] if closed or self.rank else []
        rates_bps = self._connect("ring", to, back, staged=closed)
        self.default_split = self._split_by_rate(rates_bps)

    def _connect(self, key: str, to: Sequence[int], back: Sequence[int], *, staged: bool) -> list[float]:
        """Connect edges to and from these ranks, on all ranks under the same key; returns the channels' rates."""
        senders, receivers, rates_bps = self._wiring.wire(key, to, back, staged=staged)
        self._senders |= senders
        self._receivers |= receivers
        self._connected.add(key)
        return rates_bps

    def _split_by_rate(self, rates_bps: Sequence[float]) -> ChannelSplit:
        weights = tuple(max(1, round(rate_bps)) for rate_bps in rates_bps)
        return ChannelSplit(weights, self.options.chunk_for(min(rates_bps)), self.options.window)

    def _connect_trees(self) -> None:
        """Connect the edges of all channels' trees; the first call does it."""
        if "trees" not in self._connected:
            near = sorted({peer for trees in self._trees for peer in tree.neighbours(trees, self.rank)})
            to = [peer for peer in near if peer not in self._senders]
            back = [peer for peer in near if peer not in self._receivers]
            self._connect("trees", to, back, staged=True)

    def _connect_all(self) -> None:
        """Connect the pairs of ranks that are not connected; the first call does it."""
        if "pairs" not in self._connected:
            if self.options.algorithm != "ring":
                # Edges of trees need staging memory, which those of other pairs do not have.
                self._connect_trees()
            steps = schedule.shift(self.rank, self.size)
            to = [peer for peer, _ in steps if peer not in self._senders]
            back = [peer for _, peer in steps if peer not in self._receivers]
            self._connect("pairs", to, back, staged=False)

    def sender(self, peer: int, channel: int) -> SendEndpoint:
        """The sending endpoint to `peer` on a channel. Raises LookupError if there is none."""
        for sender in self._engine.edges.senders():
            if (sender.peer, sender.channel) == (peer, channel):
                return sender
        raise LookupError(f"rank {self.rank} of {self.name} sends nothing to rank {peer} on channel {channel}")

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        """An array in memory of the communicator's provider, registered with all its NICs until it is closed."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape))
        with self.guard.during("allocating"):
            block = self.options.memory.allocate(max(1, count * kind.itemsize))
            for registrations in self._registrations:
                registrations.adopt(block)
        return block.bytes[: count * kind.itemsize].view(kind).reshape(shape)

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
    ) -> None:
        """Run a ring schedule over a flat array cut into `segments`; without a `channel_split` by the default one."""
        self._check(signature.kind)
        if self.size == 1:
            return
        with self.guard.during(signature.kind, self._seq):
            self._run(
                signature,
                "ring",
                channel_split or self.default_split,
                segments,
                lambda _, part: plan(self.rank, self.size, part.chunks),
                (array, array),
                reducing=reducing,
            )

    def tree(self, signature: Signature, array: Array, reducing: Reducing) -> None:
        """All-reduce a flat array over two trees."""
        self._check(signature.kind)
        if self.size == 1:
            return
        self._synchronize_before("trees", signature)
        with self.guard.during(signature.kind, self._seq):
            self._connect_trees()
            self._run(
                signature,
                "tree",
                self.default_split.finer(array.nbytes // 2, tree.CHUNKS),
                schedule.split(array.size, 2),
                lambda channel, part: tree.all_reduce(self.rank, self._trees[channel], part.chunks),
                (array, array),
                reducing=reducing,
            )

    def all_to_all(self, signature: Signature, source: Array, target: Array) -> None:
        """Run the linear shift of all-to-all over flat arrays of equal parts."""
        self._check(signature.kind)
        if self.size == 1:
            return
        self._synchronize_before("pairs", signature)
        with self.guard.during(signature.kind, self._seq):
            self._connect_all()
            self._run(
                signature,
                "shift",
                self.default_split,
                schedule.split(source.size, self.size),
                lambda _, part: schedule.all_to_all(self.rank, self.size, part.chunks),
                (source, target),
            )

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

    def _nic_buffers(self, array: Array, channel: int) -> NicBuffers:
        """A flat array as each NIC addresses it that may carry the channel; registers it if needed.

        Raises MemoryError.
        """
        nics = range(len(self._registrations)) if self.options.resilient else (channel,)
        if not array.nbytes:
            return dict.fromkeys(nics, NicBuffer(0, 0, 0))
        return {nic: self._registrations[nic].buffer(array) for nic in nics}

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
    ) -> None:
        """Run a plan for each channel's share of the `segments` of two flat arrays: of what is sent, and of results."""
        transfers = []
        for channel, part in channel_split.cuts(segments, arrays[0]):
            source, target, beside = (
                RegisteredArray(array, self._nic_buffers(array, channel)) for array in (*arrays, scratch)
            )
            transfers.append(
                transfer(
                    plan(channel, part),
                    part,
                    Memory(source, target, beside, row_items),
                    self._ends(channel),
                    reducing=reducing,
                    staging_bytes=self.options.staging_bytes,
                    window=channel_split.window,
                )
            )
        self._run_transfers(signature, algorithm, transfers)

    def _ends(self, channel: int) -> Ends:
        senders = {peer: ends[channel] for peer, ends in self._senders.items()}
        return Ends(senders, {peer: ends[channel] for peer, ends in self._receivers.items()})

    def _run_transfers(self, signature: Signature, algorithm: str, transfers: list[ChannelTransfer]) -> None:
        now_ns = self.options.clock_ns()
        record = self.site.recorder.operation(
            self.site.record, self._seq, signature.kind, algorithm, signature.dtype, signature.size_bytes, now_ns
        )
        for channel, each in enumerate(transfers):
            each.pacer = self._pacer(channel)
        self._engine.run(Operation(self.name, self.rank, signature, transfers, record), now_ns)
        self._seq += 1

    def _pacer(self, channel: int) -> Pacer | None:
        """A pacer for connections of several QPs, which could post more than their NIC sends; one QP needs none.

        Packets that may be marked are sent at the rate that notices of marks allow.
        """
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
        """The channels whose NICs this rank has lost."""
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
    ) -> None:
        """See Group. A CollectiveError names ranks of the communicator, and ends that one's operation as well."""
        try:
            super().ring(signature, array, segments, plan, reducing, channel_split)
        except CollectiveError as error:
            peer = self._ranks[error.peer] if error.peer >= 0 else -1
            seen = error.seen_by(self._whole.name, self._whole.rank, signature.kind, peer)
            self._whole.guard.abandon(seen)
            raise seen from error


def _engine(site: RankEndpointContext, failure_signal: FailureSignal) -> Engine:
    edges, ready = PeerRails(), waiter(site.options.completions, site.ports)
    if not site.options.resilient:
        return Engine(site.options, edges, ready, EndOnFailure(ready, failure_signal))
    from c4bench.collective.migration import MigrateOnFailure  # noqa: PLC0415  (few ranks need it: ADR 0005)

    return Engine(site.options, edges, ready, MigrateOnFailure(site, edges, ready, failure_signal))
