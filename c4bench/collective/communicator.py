"""A group of ranks and its collectives, named and behaving as in torch.distributed."""

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from c4bench.collective import arrays, schedule
from c4bench.collective.errors import CollectiveError
from c4bench.collective.group import Group
from c4bench.collective.handshake import Signature
from c4bench.collective.memory import Array
from c4bench.collective.options import Options
from c4bench.collective.process import RankProcess
from c4bench.collective.resilience_counters import ResilienceCounters
from c4bench.errors import UsageError
from c4bench.model.telemetry import Member

if TYPE_CHECKING:
    from c4bench.collective.degraded import DegradedReduce


class Communicator:
    """Ranks `members`, of which `process` is `rank`.

    Arrays are numpy, C-contiguous and of any shape; counts need not divide by anything unless a method says so. The
    ring is connected here, all pairs at the first `all_to_all`, two ranks at the first message between them. Every
    method blocks until this rank's part is done. It raises UsageError for arguments that cannot work, before anything
    moves, and CollectiveError for everything that goes wrong later, here or on another rank: a rank that fails, or
    leaves a `with` block by an error, tells all others. Use a communicator from one thread at a time.
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
        way = self._degraded.plan(whole) if self._degraded else None
        if self._degraded and way:
            self._degraded.run(way, signature, whole, reducing)
            return
        self._group.ring(signature, whole, schedule.split(whole.size, self.size), schedule.all_reduce, reducing)

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
        """Put every rank's `input` into `output`, by rank; `output` holds size x `input` items."""
        target, source = arrays.whole_and_part(output, input, self.size)
        np.copyto(target[self.rank * source.size : (self.rank + 1) * source.size], source)
        segments = schedule.split(target.size, self.size)
        self._group.ring(_signature("all_gather", target), target, segments, schedule.all_gather)

    def broadcast(self, array: Array, src: int = 0) -> None:
        """Copy rank `src`'s `array` to all ranks."""
        self._check_rank("broadcast from", src)
        whole = arrays.flat(array)
        plan = partial(schedule.broadcast, root=src)
        self._group.ring(_signature("broadcast", whole, root=src), whole, [(0, whole.size)], plan)

    def reduce(self, array: Array, dst: int = 0, op: str = "sum") -> None:
        """Reduce `array` over all ranks into rank `dst`'s; the others' arrays stay as they are."""
        self._check_rank("reduce to", dst)
        whole = arrays.flat(array)
        reducing = arrays.reducing(whole, op, self.size)
        signature = _signature("reduce", whole, reduction=op, root=dst)
        with self._group.guard.during("reduce"):
            own = whole if self.rank == dst else self._copy(whole)
        self._group.ring(signature, own, [(0, whole.size)], partial(schedule.reduce, root=dst), reducing)

    def all_to_all(self, output: Array, input: Array) -> None:  # noqa: A002  (torch's name)
        """Send part r of `input` to rank r and receive rank r's in part r of `output`; all parts are equal."""
        source, target = arrays.equal_parts(input, output, self.size)
        own = slice(*schedule.split(source.size, self.size)[self.rank])
        np.copyto(target[own], source[own])
        self._group.shift(_signature("all_to_all", source), source, target)

    def send(self, array: Array, dst: int) -> None:
        """Send `array` to rank `dst`, which must call `recv`. Messages between two ranks arrive in order."""
        self._transfer(array, self.rank, dst)

    def recv(self, array: Array, src: int) -> None:
        """Receive what rank `src` sends; its array must have the same type and as many items."""
        self._transfer(array, src, self.rank)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._group.barrier()

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """A new communicator of the ranks that give the same `color`, ordered by `key`, then by rank here.

        Every rank calls it; one that gives None takes no part, and gets None. The new one is closed apart from this.
        """
        name = f"split{self._splits}"
        self._splits += 1
        with self._group.guard.during(name):
            said = self._group.site.exchange(name, msgspec.msgpack.encode((color, key)))
        wishes = [msgspec.msgpack.decode(raw, type=tuple[int | None, int]) for raw in said]
        if color is None:
            return None
        own = sorted((wish[1], rank) for rank, wish in enumerate(wishes) if wish[0] == color)
        ranks = [rank for _, rank in own]
        return type(self)(
            f"{self.name}/{name}.{color}", ranks.index(self.rank), self._of(ranks), self._process, self.options
        )

    def shrink(self, lost: Sequence[int]) -> "Communicator":
        """A new communicator of all ranks but the `lost` ones, ordered as here; also after an error of this one.

        Every other rank calls it with the same ranks: those that CollectiveError `HOST_LOST` names in `peer`. Raises
        UsageError on a rank that is itself lost, or for ranks that do not exist. The new one is closed apart from this.
        """
        for rank in lost:
            self._check_rank("a communicator without", rank)
        if self.rank in lost:
            raise UsageError(
                f"rank {self.rank} is one of the lost ranks {list(lost)} itself; the others go on without it"
            )
        left = [rank for rank in range(self.size) if rank not in lost]
        name = f"{self.name}/without{'.'.join(map(str, sorted(set(lost))))}"
        return Communicator(name, left.index(self.rank), self._of(left), self._process, self.options)

    def move(self, peer: int, channel: int, source_port: int, qp: int = 0) -> None:
        """Have a QP to `peer` take another path from the next operation on; source port 0 leaves it to ECMP.

        Between operations nothing of this rank's is in flight, so the connection stays up. LookupError where there is
        none.
        """
        self._group.outlet(peer, channel).move(qp, source_port)

    def weigh(self, peer: int, channel: int, weights: Sequence[float]) -> None:
        """Share what goes to `peer` among the connection's QPs in these proportions from now on; 0 spares one.

        LookupError where there is no such connection, ValueError where the weights do not fit it.
        """
        self._group.outlet(peer, channel).weigh(weights)

    @property
    def resilience(self) -> ResilienceCounters | None:
        """What resilience has done so far in this communicator's own connections; None where it is off."""
        found = self._group.resilience
        if not (found and self._degraded):
            return found
        return msgspec.structs.replace(found, split=self._degraded.split, reordered=self._degraded.reordered)

    def abandon(self, error: BaseException) -> None:
        """Tell the others that this rank cannot go on, unless it heard so from one of them."""
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
        """A broadcast in a group of two: what one sends, the other receives."""
        peer = dst if src == self.rank else src
        self._check_rank("a message with", peer)
        if peer == self.rank:
            raise UsageError(f"rank {peer} exchanges a message with itself; give another rank")
        whole = arrays.flat(array)
        try:
            self._link(src, dst).ring(_signature("send", whole), whole, [(0, whole.size)], schedule.broadcast)
        except CollectiveError as error:
            doing = "send" if self.rank == src else "recv"
            raise error.seen_by(self.name, self.rank, doing, peer) from error

    def _link(self, src: int, dst: int) -> Group:
        if (src, dst) not in self._links:
            # The other rank may come as late as to any operation.
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
        return tuple(msgspec.structs.replace(self._members[rank], rank=place) for place, rank in enumerate(ranks))

    def _check_rank(self, doing: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(f"{doing} rank {rank} in a communicator of {self.size}; ranks start at 0")

    def _copy(self, array: Array) -> Array:
        """The array's content in memory kept for such copies."""
        held = self._scratch.get(array.dtype)
        if held is None or held.size < array.size:
            held = self._scratch[array.dtype] = np.empty(array.size, array.dtype)
        np.copyto(held[: array.size], array)
        return held[: array.size]


def _signature(kind: str, array: Array, *, reduction: str = "", root: int = 0) -> Signature:
    return Signature(kind, str(array.dtype), reduction, root, array.nbytes)


def _degraded(group: Group, members: Sequence[Member], process: RankProcess) -> "DegradedReduce":
    from c4bench.collective.degraded import DegradedReduce  # noqa: PLC0415  (few ranks need it: ADR 0005)

    return DegradedReduce(group, members, process)
