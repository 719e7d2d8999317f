"""A group of ranks and its collectives, named and behaving as in torch.distributed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from c4bench.collective import arrays, lanes, schedule
from c4bench.collective.arrays import Reducing
from c4bench.collective.ends import Inlet, Outlet
from c4bench.collective.engine import Engine
from c4bench.collective.lane import Lane
from c4bench.collective.lanes import Keys
from c4bench.collective.memory import Array, Registrations
from c4bench.collective.operation import Operation
from c4bench.collective.options import Options
from c4bench.collective.recorder import OpWriter, Recorder
from c4bench.collective.rendezvous import Rendezvous
from c4bench.collective.ring_layout import MAX_RANKS
from c4bench.collective.schedule import RingPlan, Span
from c4bench.collective.wire import Signature
from c4bench.collective.wiring import Site, wire
from c4bench.errors import UsageError
from c4bench.model.fabric import Nic
from c4bench.model.telemetry import CommRecord, Member
from c4bench.verbs.transport import Port

_Planner = Callable[[int, int, int], RingPlan]
_Ends = tuple[dict[int, Outlet], dict[int, Inlet]]
# Below this size a channel's share is not worth its messages.
_LANE_BYTES = 64 << 10


def open_device(nic: Nic) -> Port:
    """Open a NIC through verbs. Imported late: everything else here works without pyverbs."""
    from c4bench.verbs.device import Device  # noqa: PLC0415

    return Device(nic.device, nic.address)


class Communicator:
    """Ranks `members` of a job, this process being `rank`, over this host's `nics`: channel c uses the c-th of each.

    Arrays are numpy, C-contiguous and of any shape; counts need not divide by anything unless a method says so. The
    ring is connected here, all pairs at the first `all_to_all`. Every method blocks until this rank's part is done,
    and raises UsageError for arguments that cannot work and CollectiveError for a transport error, a rank that called
    something else, or an operation longer than `options.timeout_s`. Use it from one thread at a time.
    """

    def __init__(
        self,
        name: str,
        job: str,
        rank: int,
        members: Sequence[Member],
        nics: Sequence[Nic],
        rendezvous: Rendezvous,
        recorder: Recorder,
        options: Options | None = None,
        open_port: Callable[[Nic], Port] = open_device,
    ) -> None:
        options = options or Options()
        used = _channels(members, nics, options)
        self.rank = rank
        self.size = len(members)
        self.name = name
        self._options = options
        self._seq = 0
        self._broken = self._closed = False
        self._pairs: list[_Ends] = []
        self._scratch: dict[np.dtype[Any], Array] = {}
        with ExitStack() as undo:
            ports = tuple(_opened(undo, open_port(nic)) for nic in used)
            self._registrations = [Registrations(port) for port in ports]
            index = recorder.communicator(CommRecord(name, job, tuple(members)), rank)
            self._op_slots = recorder.operations(index)
            self._site = Site(name, job, rank, tuple(members), tuple(used), ports, recorder, index, rendezvous, options)
            self._engine = Engine(ports, options.clock_ns, options.timeout_s)
            self._ring = self._wire_ring()
            self._undo = undo.pop_all()

    def all_reduce(self, array: Array, op: str = "sum") -> None:
        """Reduce `array` over all ranks, in place: `sum`, `min`, `max`, or `avg` (floating point only)."""
        whole = arrays.flat(array)
        shares = self._shares(schedule.split(whole.size, self.size), whole)
        self._reduce_op("all_reduce", whole, shares, schedule.all_reduce, op)

    def reduce_scatter(self, output: Array, input: Array, op: str = "sum") -> None:  # noqa: A002  (torch's name)
        """Reduce `input` over all ranks and leave part `rank` in `output`; `input` holds size x `output` items."""
        source, target = arrays.whole_and_part(input, output, self.size)
        scratch = self._scratch_like(source)
        np.copyto(scratch, source)
        shares = self._shares(schedule.split(source.size, self.size), source)
        self._reduce_op("reduce_scatter", scratch, shares, schedule.reduce_scatter, op)
        np.copyto(target, scratch[self.rank * target.size : (self.rank + 1) * target.size])

    def all_gather(self, output: Array, input: Array) -> None:  # noqa: A002  (torch's name)
        """Put every rank's `input` into `output`, by rank; `output` holds size x `input` items."""
        target, source = arrays.whole_and_part(output, input, self.size)
        np.copyto(target[self.rank * source.size : (self.rank + 1) * source.size], source)
        shares = self._shares(schedule.split(target.size, self.size), target)
        self._ring_op(_signature("all_gather", target), target, shares, schedule.all_gather)

    def broadcast(self, array: Array, src: int = 0) -> None:
        """Copy rank `src`'s `array` to all ranks."""
        if not 0 <= src < self.size:
            raise UsageError(f"broadcast from rank {src} in a communicator of {self.size}; ranks start at 0")
        whole = arrays.flat(array)
        shares = self._shares([(0, whole.size)], whole)
        plan = partial(schedule.broadcast, root=src)
        self._ring_op(_signature("broadcast", whole, root=src), whole, shares, plan)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        nothing = np.empty(0, np.uint8)
        self._ring_op(_signature("barrier", nothing), nothing, [[(0, 0)]], schedule.barrier)

    def all_to_all(self, output: Array, input: Array) -> None:  # noqa: A002  (torch's name)
        """Send part r of `input` to rank r and receive rank r's in part r of `output`; all parts are equal."""
        source, target = arrays.equal_parts(input, output, self.size)
        segments = schedule.split(source.size, self.size)
        own = slice(*segments[self.rank])
        np.copyto(target[own], source[own])
        if self.size == 1:
            return
        pairs = self._all_pairs()
        made = [
            lanes.shift_lane(
                self.rank,
                source,
                target,
                lanes.cut(share, source.itemsize, self._options.chunk_bytes),
                keys=(self._keys(source, channel), self._keys(target, channel)),
                ends=pairs[channel],
                window=self._options.window,
            )
            for channel, share in enumerate(self._shares(segments, source))
        ]
        self._run(_signature("all_to_all", source), "shift", made)

    def move(self, peer: int, channel: int, source_port: int) -> None:
        """Take another path to `peer` on a channel from the next operation on; source port 0 leaves it to ECMP.

        Between operations nothing of this rank's is in flight, so the connection stays up. LookupError where there is
        none.
        """
        for outlet in self._engine.outlets(channel):
            if outlet.peer == peer:
                outlet.move(source_port, self._options.clock_ns())
                return
        raise LookupError(f"rank {self.rank} of {self.name} sends nothing to rank {peer} on channel {channel}")

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        if self._closed:
            return
        self._broken = self._closed = True
        for registrations in self._registrations:
            registrations.close()
        self._undo.close()
        self._site.recorder.release(self._site.record)
        if self._site.routed:
            self._site.rendezvous.release(self._site.routed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wire_ring(self) -> list[tuple[Outlet, Inlet]]:
        if self.size == 1:
            return []
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        outlets, inlets = wire(self._site, "ring", [right], [left], staged=True)
        self._attach(outlets, inlets)
        return list(zip(outlets[right], inlets[left], strict=True))

    def _all_pairs(self) -> list[_Ends]:
        """Ends by channel and peer; the ring's serve its edges."""
        if not self._pairs:
            steps = schedule.shift(self.rank, self.size)
            right, left = steps[0]
            to = [peer for peer, _ in steps if peer != right]
            back = [peer for _, peer in steps if peer != left]
            outlets, inlets = wire(self._site, "pairs", to, back, staged=False)
            self._attach(outlets, inlets)
            outlets[right], inlets[left] = [end for end, _ in self._ring], [end for _, end in self._ring]
            self._pairs = [
                (
                    {peer: ends[channel] for peer, ends in outlets.items()},
                    {peer: ends[channel] for peer, ends in inlets.items()},
                )
                for channel in range(len(self._site.ports))
            ]
        return self._pairs

    def _attach(self, outlets: Mapping[int, list[Outlet]], inlets: Mapping[int, list[Inlet]]) -> None:
        sides: list[Sequence[Outlet | Inlet]] = [*outlets.values(), *inlets.values()]
        for ends in sides:
            for channel, end in enumerate(ends):
                self._engine.attach(channel, end)

    def _reduce_op(self, kind: str, array: Array, shares: list[list[Span]], plan: _Planner, op: str) -> None:
        reducing = arrays.reducing(array, op, self.size)
        self._ring_op(_signature(kind, array, reduction=op), array, shares, plan, reducing)

    def _ring_op(
        self,
        signature: Signature,
        array: Array,
        shares: list[list[Span]],
        plan: _Planner,
        reducing: Reducing | None = None,
    ) -> None:
        if self.size == 1:
            return
        made = []
        for channel, share in enumerate(shares):
            part = lanes.cut(share, array.itemsize, self._options.chunk_bytes)
            lane = lanes.ring_lane(
                plan(self.rank, self.size, part.chunks),
                array,
                part,
                keys=self._keys(array, channel),
                ends=self._ring[channel],
                reducing=reducing,
                staging_bytes=self._options.staging_bytes,
                window=self._options.window,
            )
            made.append(lane)
        self._run(signature, "ring", made)

    def _run(self, signature: Signature, algorithm: str, made: list[Lane]) -> None:
        seq = self._seq
        record = OpWriter(
            self._op_slots[seq % len(self._op_slots)],
            seq,
            signature.kind,
            algorithm,
            signature.dtype,
            signature.size_bytes,
            self._options.clock_ns(),
        )
        operation = Operation(self.name, self.rank, signature, made, record)
        if self._broken:
            raise operation.error("this communicator is closed or has failed; make another", status="BROKEN")
        try:
            self._engine.run(operation)
        except BaseException:
            self._broken = True
            raise
        self._seq += 1

    def _shares(self, segments: list[Span], array: Array) -> list[list[Span]]:
        """Each used channel's share of every segment: one channel where the array is not worth more."""
        channels = len(self._site.ports)
        return lanes.share(segments, channels if array.nbytes >= channels * _LANE_BYTES else 1)

    def _keys(self, array: Array, channel: int) -> Keys:
        if not array.nbytes:
            return Keys(0, 0)
        region = self._registrations[channel].region(array)
        return Keys(region.lkey, region.rkey)

    def _scratch_like(self, array: Array) -> Array:
        held = self._scratch.get(array.dtype)
        if held is None or held.size < array.size:
            held = self._scratch[array.dtype] = np.empty(array.size, array.dtype)
        return held[: array.size]


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


def _signature(kind: str, array: Array, *, reduction: str = "", root: int = 0) -> Signature:
    return Signature(kind, str(array.dtype), reduction, root, array.nbytes)
