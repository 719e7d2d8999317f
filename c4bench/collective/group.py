"""The members of a communicator, connected, and how an operation among them runs and fails."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import numpy as np

from c4bench.collective import lanes, schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.ends import Inlet, Outlet
from c4bench.collective.errors import CollectiveError
from c4bench.collective.fabrics import Channels, Fabric
from c4bench.collective.folding import Held, Sides, fold_lane
from c4bench.collective.lane import Lane
from c4bench.collective.lanes import Place
from c4bench.collective.memory import Array, Registrations
from c4bench.collective.operation import Operation
from c4bench.collective.options import Options
from c4bench.collective.process import Process
from c4bench.collective.rendezvous import Alarm
from c4bench.collective.resilience import Resilience
from c4bench.collective.ring_layout import MAX_RANKS
from c4bench.collective.schedule import RingPlan, Span
from c4bench.collective.silence import Silence
from c4bench.collective.tempo import Tempo
from c4bench.collective.wire import Signature
from c4bench.collective.wiring import Site
from c4bench.errors import C4Error, UsageError
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import CommRecord, Failure, Member
from c4bench.verbs.errors import VerbsError
from c4bench.verbs.transport import Port

Planner = Callable[[int, int, int], RingPlan]
_Ends = tuple[dict[int, Outlet], dict[int, Inlet]]
# Below this size a channel's share is not worth its messages.
_LANE_BYTES = 64 << 10
_NOTHING = np.empty(0, np.uint8)


class Carriage(NamedTuple):
    """How an array goes: by channels in proportion to `weights`, 0 spares one, in messages up to `chunk_bytes`."""

    weights: tuple[int, ...]
    chunk_bytes: int


class Group:
    """Members connected as a ring; or, not `closed`, as a line from rank 0, over which nothing can be reduced.

    Raises CollectiveError when it cannot be connected, and tells the others.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        members: Sequence[Member],
        process: Process,
        options: Options,
        *,
        closed: bool = True,
    ) -> None:
        used = _channels(members, process.nics, options)
        self.name, self.rank, self.size, self.options = name, rank, len(members), options
        self._rendezvous, self._before = process.rendezvous, process.before_operation
        self._seq = 0
        self._broken = False
        self._pairs: list[_Ends] = []
        self._registrations: list[Registrations] = []
        recording = process.recorder if options.record else Silence()
        with ExitStack() as undo, self.guard("connecting"):
            alarm = process.rendezvous.alarm(name)
            undo.callback(alarm.close)
            ports = tuple(_opened(undo, process.open_port(nic)) for nic in used)
            index = recording.communicator(CommRecord(name, process.job, tuple(members)), rank)
            undo.callback(recording.release, index)
            self.site = Site(name, rank, tuple(members), process, tuple(used), ports, recording, index, options)
            undo.callback(self._release_routes)
            self._registrations += [Registrations(port) for port in ports]
            undo.callback(self._deregister)
            self._fabric = _fabric(self.site, alarm, undo)
            self._engine = self._fabric.engine
            self._ring = self._wire_ring(closed=closed)
            self._undo = undo.pop_all()

    def _release_routes(self) -> None:
        if self.site.routed:
            self._rendezvous.release(self.site.routed)

    def _deregister(self) -> None:
        for registrations in self._registrations:
            registrations.close()

    def _wire_ring(self, *, closed: bool) -> list[tuple[Outlet | None, Inlet | None]]:
        if self.size == 1:
            return []
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        to = [right] if closed or right else []
        back = [left] if closed or self.rank else []
        outlets, inlets, rates_bps = self._fabric.wire("ring", to, back, staged=closed)
        weights = tuple(max(1, round(rate_bps)) for rate_bps in rates_bps)
        self.usual = Carriage(weights, self.options.chunk_for(min(rates_bps)))
        self._attach(outlets, inlets)
        channels = range(len(self.site.ports))
        return [
            (outlets[right][channel] if to else None, inlets[left][channel] if back else None) for channel in channels
        ]

    def _attach(self, outlets: Mapping[int, list[Outlet]], inlets: Mapping[int, list[Inlet]]) -> None:
        sides: list[Sequence[Outlet | Inlet]] = [*outlets.values(), *inlets.values()]
        for ends in sides:
            for channel, end in enumerate(ends):
                self._engine.attach(channel, end)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.ring(Signature("barrier", "", "", 0, 0), _NOTHING, [(0, 0)], schedule.barrier)

    def pairs(self) -> list[_Ends]:
        """Ends to and from every other rank, by channel; connected at the first call, the ring's serve its edges."""
        if not self._pairs:
            steps = schedule.shift(self.rank, self.size)
            right, left = steps[0]
            to = [peer for peer, _ in steps if peer != right]
            back = [peer for _, peer in steps if peer != left]
            outlets, inlets, _ = self._fabric.wire("pairs", to, back, staged=False)
            self._attach(outlets, inlets)
            for channel, (outlet, inlet) in enumerate(self._ring):
                assert outlet is not None
                assert inlet is not None
                self._pairs.append(
                    (
                        {right: outlet} | {peer: ends[channel] for peer, ends in outlets.items()},
                        {left: inlet} | {peer: ends[channel] for peer, ends in inlets.items()},
                    )
                )
        return self._pairs

    def outlet(self, peer: int, channel: int) -> Outlet:
        """The sending end towards `peer`. LookupError where there is none."""
        found = self._engine.outlet(peer, channel)
        if found is None:
            raise LookupError(f"rank {self.rank} of {self.name} sends nothing to rank {peer} on channel {channel}")
        return found

    def _shares(self, segments: list[Span], array: Array, weights: Sequence[int]) -> list[tuple[int, list[Span]]]:
        """Each used channel and its share of every segment: one channel where the array is not worth more."""
        used = [channel for channel, weight in enumerate(weights) if weight]
        if array.nbytes < len(self.site.ports) * _LANE_BYTES:
            used = used[:1]
        return list(zip(used, lanes.share(segments, [weights[channel] for channel in used]), strict=True))

    def place(self, array: Array, channel: int) -> Place:
        """Where a channel's NIC finds a flat array; registers it unless it is. Raises MemoryError."""
        if not array.nbytes:
            return Place(0, 0, 0)
        return self._fabric.place(array, channel, self._registrations)

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        """An array in memory of the communicator's provider, registered with all its NICs until it is closed."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape))
        with self.guard("allocating"):
            block = self.options.memory.allocate(max(1, count * kind.itemsize))
            for registrations in self._registrations:
                registrations.adopt(block)
        return block.bytes[: count * kind.itemsize].view(kind).reshape(shape)

    def ring(
        self,
        signature: Signature,
        array: Array,
        segments: list[Span],
        plan: Planner,
        reducing: Reducing | None = None,
        carriage: "Carriage | None" = None,
    ) -> None:
        """Run a ring schedule over a flat array, cut into `segments`; `carriage` None: by all channels, as usual."""
        self._check(signature.kind)
        if self.size == 1:
            return
        weights, chunk_bytes = carriage or self.usual
        with self.guard(signature.kind, self._seq):
            made = [
                self._ring_lane(channel, share, array, plan, reducing, chunk_bytes)
                for channel, share in self._shares(segments, array, weights)
            ]
            self._run(signature, "ring", made)

    def _ring_lane(
        self,
        channel: int,
        share: list[Span],
        array: Array,
        plan: Planner,
        reducing: Reducing | None,
        chunk_bytes: int,
    ) -> Lane:
        part = lanes.cut(share, array.itemsize, chunk_bytes)
        return lanes.ring_lane(
            plan(self.rank, self.size, part.chunks),
            array,
            part,
            place=self.place(array, channel),
            ends=self._ring[channel],
            reducing=reducing,
            staging_bytes=self.options.staging_bytes,
            window=self.options.window,
        )

    def shift(self, signature: Signature, source: Array, target: Array) -> None:
        """Run the linear shift of all-to-all over flat arrays of equal parts."""
        self._check(signature.kind)
        if self.size == 1:
            return
        self._meet_all(signature)
        with self.guard(signature.kind, self._seq):
            pairs = self.pairs()
            weights, chunk_bytes = self.usual
            made = [
                lanes.shift_lane(
                    self.rank,
                    source,
                    target,
                    lanes.cut(share, source.itemsize, chunk_bytes),
                    places=(self.place(source, channel), self.place(target, channel)),
                    ends=pairs[channel],
                    window=self.options.window,
                )
                for channel, share in self._shares(schedule.split(source.size, self.size), source, weights)
            ]
            self._run(signature, "shift", made)

    def _meet_all(self, signature: Signature) -> None:
        """Connecting all pairs takes all ranks: a lap of the ring shows first that they have come for the same."""
        if not self._pairs:
            self.ring(signature, _NOTHING, [(0, 0)], schedule.barrier)

    def fold(
        self, signature: Signature, array: Array, spare: Array, sides: Sides, reducing: Reducing, carriage: Carriage
    ) -> None:
        """Fold what the odd ranks have into what the others have reduced, and give all the sums (see `folding`)."""
        self._check(signature.kind)
        self._meet_all(signature)
        homes = schedule.split(array.size, len(sides.evens))
        with self.guard(signature.kind, self._seq):
            pairs = self.pairs()
            made = [
                fold_lane(
                    self.rank,
                    sides,
                    homes,
                    lanes.cut(share, array.itemsize, carriage.chunk_bytes),
                    held=Held(array, self.place(array, channel)),
                    spare=Held(spare, self.place(spare, channel)),
                    ends=pairs[channel],
                    reducing=reducing,
                    window=self.options.window,
                )
                for channel, share in self._shares(homes, array, carriage.weights)
            ]
            self._run(signature, "fold", made)

    def _run(self, signature: Signature, algorithm: str, made: list[Lane]) -> None:
        now_ns = self.options.clock_ns()
        record = self.site.recorder.operation(
            self.site.record, self._seq, signature.kind, algorithm, signature.dtype, signature.size_bytes, now_ns
        )
        for channel, lane in enumerate(made):
            lane.tempo = self._tempo(channel)
        self._engine.run(Operation(self.name, self.rank, signature, made, record), now_ns)
        self._seq += 1

    def _tempo(self, channel: int) -> Tempo | None:
        """Several QPs together could post more than their NIC sends; one is held back by the NIC itself."""
        if self.options.qps == 1 or self.options.resilient:
            return None
        return Tempo(self.usual.weights[channel], self.options.window)

    def _check(self, kind: str) -> None:
        self._before()
        if self._broken:
            text = "this communicator is closed or has failed; make another"
            raise self._error(kind, self._seq, text, "BROKEN")

    def _error(self, kind: str, seq: int, message: str, status: str) -> CollectiveError:
        return CollectiveError(message, comm=self.name, rank=self.rank, kind=kind, seq=seq, status=status)

    @contextmanager
    def guard(self, kind: str, seq: int = -1) -> Iterator[None]:
        """Make a CollectiveError of what goes wrong with a device or memory, and tell the others of any error."""
        try:
            yield
        except (VerbsError, MemoryError) as error:
            status = "DEVICE" if isinstance(error, VerbsError) else "MEMORY"
            found = self._error(kind, seq, str(error), status)
            self.abandon(found)
            raise found from error
        except BaseException as error:
            self.abandon(error)
            raise

    def abandon(self, error: BaseException) -> None:
        """Tell the others why this rank cannot go on, unless it only heard so itself."""
        status, peer = (error.status, error.peer) if isinstance(error, CollectiveError) else ("", -1)
        if not (self._broken or status == "ABORTED"):
            with suppress(C4Error):
                rank = peer if status == "HOST_LOST" else self.rank
                self._rendezvous.fail(self.name, Failure(rank, str(error) or type(error).__name__, status, peer))
        self._broken = True

    @property
    def resilience(self) -> Resilience | None:
        """What resilience has done so far; None where it is off."""
        return self._engine.resilience

    @property
    def lost(self) -> frozenset[int]:
        """The channels whose NICs this rank has lost."""
        return self._engine.lost

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        self._broken = True
        self._undo.close()


def _opened(undo: ExitStack, port: Port) -> Port:
    undo.callback(port.close)
    return port


def _channels(members: Sequence[Member], nics: Sequence[Nic], options: Options) -> Sequence[Nic]:
    most = min([len(nics), *(len(member.nics) for member in members)])
    wanted = options.channels or most
    if not 0 < wanted <= most:
        raise UsageError(f"{wanted} channels need as many NICs on every member; there are {most}")
    if len(members) > MAX_RANKS:
        raise UsageError(f"{len(members)} ranks; a communicator records at most {MAX_RANKS}")
    return nics[:wanted]


def _fabric(site: Site, alarm: Alarm, undo: ExitStack) -> Fabric:
    if not site.options.resilient:
        return Channels(site, alarm, undo)
    from c4bench.collective.resilient.fabric import Rails  # noqa: PLC0415  (few ranks need it: ADR 0005)

    return Rails(site, alarm, undo)
