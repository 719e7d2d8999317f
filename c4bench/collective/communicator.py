"""A group of ranks and its collectives, named and behaving as in torch.distributed."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from c4bench.collective import arrays, schedule
from c4bench.collective.endpoint_context import RankProcess
from c4bench.collective.engine import ResilienceCounters
from c4bench.collective.errors import CollectiveError
from c4bench.collective.group import Group
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array
from c4bench.collective.options import Options
from c4bench.errors import UsageError
from c4bench.model.telemetry import Member

if TYPE_CHECKING:
    from c4bench.collective.degraded import DegradedReduce


class Communicator:
    """Ranks `members`, of which `process` is `rank`.

    Arrays are numpy, C-contiguous and of any shape. Lengths are arbitrary unless a method says otherwise. The
    constructor connects the ring; the first `all_to_all` connects all pairs; the first message between two ranks
    connects those. Every method blocks until this rank's part is done. It raises UsageError for invalid arguments,
    before anything is sent, and CollectiveError for every later failure on any rank: a rank that fails, or leaves a
    `with` block by an error, notifies all others. Use a communicator from one thread at a time.
    """

    def __init__(
        self, name: str, rank: int, members: Sequence[Member], process: RankProcess, options: Options | None = None
    ) -> None:
        self.name, self.rank, self.size = name, rank, len(members)
        self.options = options or Options()
        self._members = tuple(members)
        self._process = process
        self._group = Group(name, rank, self._members, process, self.options)
        self._degraded = _degraded(self._group, members, process) if self.options.resilient else None
        self._links: dict[tuple[int, int], Group] = {}
        self._splits = 0
        self._scratch: dict[np.dtype[Any], Array] = {}

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Array:
        """An array in memory of `options.memory`, registered with every NIC until the communicator is closed."""
        return self._group.empty(shape, dtype)

    def all_reduce(self, array: Array, op: str = "sum") -> None:
        """Reduce `array` over all ranks, in place, by `sum`, `min`, `max` or `avg` (of integers: rounded down)."""
        whole = arrays.flat(array)
        reducing = arrays.reducing(whole, op, self.size)
        signature = _signature("all_reduce", whole, reduction=op)
        if self._degraded and self._degraded.all_reduce(signature, whole, reducing):
            return
        self._group.all_reduce(signature, whole, reducing)

    def reduce_scatter(self, output: Array, input: Array, op: str = "sum") -> None:  # noqa: A002  (torch's name)
        """Reduce `input` over all ranks and leave part `rank` in `output`; `input` holds size x `output` items."""
        source, target = arrays.whole_and_part(input, output, self.size)
        reducing = arrays.reducing(source, op, self.size)
        with self._group.guard.during("reduce_scatter"):
            scratch = self._copy(source)
        signature = _signature("reduce_scatter", source, reduction=op)
        self._group.ring(signature, scratch, schedule.split(source.size, self.size), schedule.reduce_scatter, reducing)
        np.copyto(target, scratch[self.rank * target.size : (self.rank + 1) * target.size])

    def all_gather(self, output: Array, input: Array) -> None:  # noqa: A002  (torch's name)
        """Gather every rank's `input` in `output`, ordered by rank; `output` holds size x `input` items."""
        target, source = arrays.whole_and_part(output, input, self.size)
        np.copyto(target[self.rank * source.size : (self.rank + 1) * source.size], source)
        segments = schedule.split(target.size, self.size)
        self._group.ring(_signature("all_gather", target), target, segments, schedule.all_gather)

    def broadcast(self, array: Array, src: int = 0) -> None:
        """Copy rank `src`'s `array` to all ranks."""
        self._check_rank("broadcast from", src)
        whole = arrays.flat(array)
        signature = _signature("broadcast", whole, root=src)
        self._group.ring(signature, whole, [(0, whole.size)], schedule.broadcast, first=src)

    def reduce(self, array: Array, dst: int = 0, op: str = "sum") -> None:
        """Reduce `array` over all ranks into that of rank `dst`; other ranks' arrays do not change."""
        self._check_rank("reduce to", dst)
        whole = arrays.flat(array)
        reducing = arrays.reducing(whole, op, self.size)
        signature = _signature("reduce", whole, reduction=op, root=dst)
        with self._group.guard.during("reduce"):
            own = whole if self.rank == dst else self._copy(whole)
        self._group.ring(signature, own, [(0, whole.size)], schedule.reduce, reducing, first=dst)

    def all_to_all(self, output: Array, input: Array) -> None:  # noqa: A002  (torch's name)
        """Send part r of `input` to rank r and receive part r of `output` from it; all parts have equal length."""
        source, target = arrays.equal_parts(input, output, self.size)
        own = slice(*schedule.split(source.size, self.size)[self.rank])
        np.copyto(target[own], source[own])
        self._group.all_to_all(_signature("all_to_all", source), source, target)

    def send(self, array: Array, dst: int) -> None:
        """Send `array` to rank `dst`, which must call `recv`. Messages between two ranks arrive in order."""
        self._transfer(array, self.rank, dst)

    def recv(self, array: Array, src: int) -> None:
        """Receive an array from rank `src`, which sends one of the same type and length."""
        self._transfer(array, src, self.rank)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._group.barrier()

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """A new communicator of the ranks with the same `color`, ordered by `key`, then by rank (as MPI_Comm_split).

        Every rank must call it; a rank with color None gets None. Close the new communicator separately.
        """
        name = f"split{self._splits}"
        self._splits += 1
        with self._group.guard.during(name):
            answers = self._group.site.exchange(name, msgspec.msgpack.encode((color, key)))
        choices = [msgspec.msgpack.decode(raw, type=tuple[int | None, int]) for raw in answers]
        if color is None:
            return None
        own = sorted((wish[1], rank) for rank, wish in enumerate(choices) if wish[0] == color)
        ranks = [rank for _, rank in own]
        return type(self)(
            f"{self.name}/{name}.{color}", ranks.index(self.rank), self._of(ranks), self._process, self.options
        )

    def shrink(self, lost: Sequence[int]) -> "Communicator":
        """A new communicator without the `lost` ranks, in the same order (as MPIX_Comm_shrink).

        It works after an error of this communicator. All remaining ranks must call it with the same `lost` ranks, those
        that CollectiveError `HOST_LOST` names in `peer`. Raises UsageError on a lost rank, or for ranks that do not
        exist. Close the new communicator separately.
        """
        for rank in lost:
            self._check_rank("a communicator without", rank)
        if self.rank in lost:
            raise UsageError(f"rank {self.rank} is one of the lost ranks {list(lost)}; only other ranks may shrink")
        left = [rank for rank in range(self.size) if rank not in lost]
        name = f"{self.name}/without{'.'.join(map(str, sorted(set(lost))))}"
        return Communicator(name, left.index(self.rank), self._of(left), self._process, self.options)

    def move(self, peer: int, channel: int, source_port: int, qp: int = 0) -> None:
        """Move a QP to `peer` to another path from the next operation on; source port 0 leaves the path to ECMP.

        Call it between operations: nothing is in flight then, and the connection stays up. Raises LookupError for a
        connection that does not exist.
        """
        self._group.sender(peer, channel).move(qp, source_port)

    def weigh(self, peer: int, channel: int, weights: Sequence[float]) -> None:
        """Share the load to `peer` among the connection's QPs by these weights from now on; 0 leaves a QP unused.

        Raises LookupError for a connection that does not exist, ValueError for weights that do not fit it.
        """
        self._group.sender(peer, channel).weigh(weights)

    @property
    def qps(self) -> int:
        """How many QPs each connection of the ring has: `options.qps`, or the number that C4P has chosen."""
        return self._group.options.qps

    @property
    def resilience(self) -> ResilienceCounters | None:
        """Counters of this communicator's own connections; None when resilience is off."""
        counters = self._group.resilience
        if not (counters and self._degraded):
            return counters
        return msgspec.structs.replace(counters, split=self._degraded.split, reordered=self._degraded.reordered)

    def abandon(self, error: BaseException) -> None:
        """Notify the other ranks that this one cannot continue, unless one of them failed first."""
        for group in (self._group, *self._links.values()):
            group.guard.abandon(error)

    def close(self) -> None:
        """Release connections, memory and devices. May be called again, and after an error."""
        for link in self._links.values():
            link.close()
        if self._degraded:
            self._degraded.close()
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abandon(error)
        self.close()

    def _transfer(self, array: Array, src: int, dst: int) -> None:
        """A broadcast in a group of two ranks."""
        peer = dst if src == self.rank else src
        self._check_rank("a message with", peer)
        if peer == self.rank:
            raise UsageError(f"rank {peer} exchanges a message with itself; give another rank")
        whole = arrays.flat(array)
        try:
            self._link(src, dst).ring(_signature("send", whole), whole, [(0, whole.size)], schedule.broadcast)
        except CollectiveError as error:
            action = "send" if self.rank == src else "recv"
            raise error.seen_by(self.name, self.rank, action, peer) from error

    def _link(self, src: int, dst: int) -> Group:
        if (src, dst) not in self._links:
            # The other rank may join as late as any operation allows.
            options = msgspec.structs.replace(self.options, connect_s=self.options.timeout_s)
            self._links[src, dst] = Group(
                f"{self.name}/{src}>{dst}",
                int(self.rank == dst),
                self._of([src, dst]),
                self._process,
                options,
                closed=False,
            )
        return self._links[src, dst]

    def _of(self, ranks: Sequence[int]) -> tuple[Member, ...]:
        return tuple(msgspec.structs.replace(self._members[rank], rank=new_rank) for new_rank, rank in enumerate(ranks))

    def _check_rank(self, action: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(f"{action} rank {rank} in a communicator of {self.size}; ranks start at 0")

    def _copy(self, array: Array) -> Array:
        """A copy of the array, in memory that the next copy reuses."""
        scratch = self._scratch.get(array.dtype)
        if scratch is None or scratch.size < array.size:
            scratch = self._scratch[array.dtype] = np.empty(array.size, array.dtype)
        np.copyto(scratch[: array.size], array)
        return scratch[: array.size]


def _signature(kind: str, array: Array, *, reduction: str = "", root: int = 0) -> Signature:
    return Signature(kind, str(array.dtype), reduction, root, array.nbytes)


def _degraded(group: Group, members: Sequence[Member], process: RankProcess) -> "DegradedReduce":
    from c4bench.collective.degraded import DegradedReduce  # noqa: PLC0415  (few ranks need it: ADR 0005)

    return DegradedReduce(group, members, process)
