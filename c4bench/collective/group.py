"""The members of a communicator, connected, and the operations among them: schedules made lanes, and run."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from c4bench.collective import schedule, transfer_plan
from c4bench.collective.arrays import Reducing
from c4bench.collective.backends import ChannelBackend, TransportBackend
from c4bench.collective.channel_split import ChannelSplit
from c4bench.collective.channel_transfer import ChannelTransfer
from c4bench.collective.connections import Connections
from c4bench.collective.endpoints import SendEndpoint
from c4bench.collective.failure_guard import FailureGuard
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array, Registrations
from c4bench.collective.opening import open_site, used_nics
from c4bench.collective.operation import Operation
from c4bench.collective.options import Options
from c4bench.collective.pacer import Pacer
from c4bench.collective.process import RankProcess
from c4bench.collective.rendezvous import FailureSignal
from c4bench.collective.resilience_counters import ResilienceCounters
from c4bench.collective.schedule import RingPlan, Span
from c4bench.collective.transfer_plan import Place
from c4bench.collective.two_level_reduce import Held, Sides, fold_transfer
from c4bench.collective.wiring import RankEndpointContext
from c4bench.model.telemetry import Member

Planner = Callable[[int, int, int], RingPlan]
_NOTHING = np.empty(0, np.uint8)


class Group:
    """Members connected as a ring; or, not `closed`, as a line from rank 0, over which nothing can be reduced.

    Raises CollectiveError when it cannot be connected, and tells the others.
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
        self.name, self.rank, self.size, self.options = name, rank, len(members), options
        self.guard = FailureGuard(name, rank, process.rendezvous)
        self._before = process.before_operation
        self._seq = 0
        with ExitStack() as undo, self.guard.during("connecting"):
            alarm = process.rendezvous.alarm(name)
            undo.callback(alarm.close)
            self.site = open_site(undo, name, rank, members, process, options, nics)
            self._registrations = [Registrations(port) for port in self.site.ports]
            undo.callback(self._deregister)
            self._fabric = _fabric(self.site, alarm, undo)
            self._engine = self._fabric.engine
            self._connections = Connections(self.site, self._fabric, closed=closed)
            self._undo = undo.pop_all()

    def _deregister(self) -> None:
        for registrations in self._registrations:
            registrations.close()

    @property
    def usual(self) -> ChannelSplit:
        """All channels, by their rates."""
        return self._connections.usual

    def outlet(self, peer: int, channel: int) -> SendEndpoint:
        """The sending end towards `peer`. LookupError where there is none."""
        return self._connections.outlet(peer, channel)

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
        carriage: ChannelSplit | None = None,
    ) -> None:
        """Run a ring schedule over a flat array, cut into `segments`; `carriage` None: by all channels, as usual."""
        self._check(signature.kind)
        if self.size == 1:
            return
        carriage = carriage or self.usual
        with self.guard.during(signature.kind, self._seq):
            made = [
                transfer_plan.ring_transfer(
                    plan(self.rank, self.size, part.chunks),
                    array,
                    part,
                    place=self._place(array, channel),
                    ends=self._connections.ring[channel],
                    reducing=reducing,
                    staging_bytes=self.options.staging_bytes,
                    window=carriage.window,
                )
                for channel, part in carriage.cuts(segments, array)
            ]
            self._run(signature, "ring", made)

    def shift(self, signature: Signature, source: Array, target: Array) -> None:
        """Run the linear shift of all-to-all over flat arrays of equal parts."""
        self._check(signature.kind)
        if self.size == 1:
            return
        self._meet_all(signature)
        with self.guard.during(signature.kind, self._seq):
            pairs = self._connections.pairs()
            made = [
                transfer_plan.shift_transfer(
                    self.rank,
                    source,
                    target,
                    part,
                    places=(self._place(source, channel), self._place(target, channel)),
                    ends=pairs[channel],
                    window=self.usual.window,
                )
                for channel, part in self.usual.cuts(schedule.split(source.size, self.size), source)
            ]
            self._run(signature, "shift", made)

    def fold(
        self, signature: Signature, array: Array, spare: Array, sides: Sides, reducing: Reducing, carriage: ChannelSplit
    ) -> None:
        """Fold what the odd ranks have into what the others have reduced, and give all the sums (see `folding`)."""
        self._check(signature.kind)
        self._meet_all(signature)
        homes = schedule.split(array.size, len(sides.evens))
        with self.guard.during(signature.kind, self._seq):
            pairs = self._connections.pairs()
            made = [
                fold_transfer(
                    self.rank,
                    sides,
                    homes,
                    part,
                    held=Held(array, self._place(array, channel)),
                    spare=Held(spare, self._place(spare, channel)),
                    ends=pairs[channel],
                    reducing=reducing,
                    window=carriage.window,
                )
                for channel, part in carriage.cuts(homes, array)
            ]
            self._run(signature, "fold", made)

    def _meet_all(self, signature: Signature) -> None:
        """Connecting all pairs takes all ranks: a lap of the ring shows first that they have come for the same."""
        if not self._connections.meshed:
            self.ring(signature, _NOTHING, [(0, 0)], schedule.barrier)

    def _place(self, array: Array, channel: int) -> Place:
        """Where a channel's NIC finds a flat array; registers it unless it is. Raises MemoryError."""
        if not array.nbytes:
            return Place(0, 0, 0)
        return self._fabric.place(array, channel, self._registrations)

    def _check(self, kind: str) -> None:
        self._before()
        self.guard.check(kind, self._seq)

    def _run(self, signature: Signature, algorithm: str, made: list[ChannelTransfer]) -> None:
        now_ns = self.options.clock_ns()
        record = self.site.recorder.operation(
            self.site.record, self._seq, signature.kind, algorithm, signature.dtype, signature.size_bytes, now_ns
        )
        for channel, lane in enumerate(made):
            lane.tempo = self._tempo(channel)
        self._engine.run(Operation(self.name, self.rank, signature, made, record), now_ns)
        self._seq += 1

    def _tempo(self, channel: int) -> Pacer | None:
        """Several QPs together could post more than their NIC sends; one is held back by the NIC itself."""
        if self.options.qps == 1 or self.options.resilient:
            return None
        return Pacer(self.usual.weights[channel], self.options.window)

    @property
    def resilience(self) -> ResilienceCounters | None:
        """What resilience has done so far; None where it is off."""
        return self._engine.resilience

    @property
    def lost(self) -> frozenset[int]:
        """The channels whose NICs this rank has lost."""
        return self._engine.lost

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        self.guard.broken = True
        self._undo.close()


def _fabric(site: RankEndpointContext, alarm: FailureSignal, undo: ExitStack) -> TransportBackend:
    if not site.options.resilient:
        return ChannelBackend(site, alarm, undo)
    from c4bench.collective.resilient.backend import RailBackend  # noqa: PLC0415  (few ranks need it: ADR 0005)

    return RailBackend(site, alarm, undo)
