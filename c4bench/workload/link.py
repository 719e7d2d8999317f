"""RDMA writes over one connection: the throughput of verbs alone from rank 0 to rank 1, without a collective."""

import mmap
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.fabric import Nic
from c4bench.verbs.device import Device
from c4bench.verbs.transport import PROFILES, Connection, Remote
from c4bench.verbs.waiting import Waiter, waiter
from c4bench.workload.context import RankContext

_LONGEST_S = 120.0
_PERIOD = 251  # prime: a page, a packet or a message in a wrong place shows


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For each of `sizes_bytes` send `total_bytes`, in at most `most_messages` messages, `window` in flight."""

    sizes_bytes: tuple[int, ...]
    total_bytes: int = 64 << 20
    most_messages: int = 2048
    window: int = 16
    profile: str = "patient"
    completions: str = "events"

    def messages(self, size_bytes: int) -> int:
        """How many messages of that size to send: at least a full window."""
        return min(max(self.total_bytes // size_bytes, self.window), self.most_messages)


class Place(msgspec.Struct, frozen=True):
    """Registered memory that the far end may write to."""

    address: int
    rkey: int


class Offer(msgspec.Struct, frozen=True):
    """What one end needs to know about the other."""

    remote: Remote
    place: Place


def run(context: RankContext) -> None:
    """Report `link`: for each size what rank 0 has `sent`, when the first message was posted and the last completed."""
    parameters = context.parameters(Link)
    sent = []
    with LinkEnd(
        context, max(parameters.sizes_bytes), parameters.window, parameters.profile, parameters.completions
    ) as link_end:
        for size in parameters.sizes_bytes if context.rank == 0 else ():
            messages = parameters.messages(size)
            began, ended = link_end.send(size, messages)
            sent.append({"size_bytes": size, "messages": messages, "began_s": began, "ended_s": ended})
        link_end.exchange("sent")
        if context.rank == 1:
            link_end.check()
    context.report("link", sent=sent)


class End:
    """An opened NIC with `size_bytes` of memory that others may write to, until `undo` is closed."""

    def __init__(self, nic: Nic, size_bytes: int, undo: ExitStack, completions: str = "events") -> None:
        self.device = undo.enter_context(Device(nic))
        self.bytes = np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)
        region = self.device.register(self.bytes.ctypes.data, size_bytes)
        undo.callback(region.close)
        self.local = self.bytes.ctypes.data, region.lkey
        self.place = Place(self.bytes.ctypes.data, region.rkey)
        self.waiter = waiter(completions, [self.device])


class LinkEnd:
    """One end of a connection between the two ranks of a job, and `size_bytes` of memory that the other may write to.

    Rank 0's memory has a pattern, which rank 1 can check. Raises UsageError in a job that does not have two ranks.
    """

    def __init__(self, context: RankContext, size_bytes: int, window: int, profile: str, completions: str) -> None:
        if context.size != 2:
            raise UsageError(f"job {context.job.id}: a link needs 2 ranks, and the job has {context.size}")
        self._context, self._window = context, window
        own = context.job.members[context.rank].nics[0]
        nic = next(nic for nic in context.job.nics if nic.name == own)
        with ExitStack() as undo:
            self._end = End(nic, size_bytes, undo, completions)
            self._end.bytes[:] = _pattern(size_bytes) if context.rank == 0 else 0
            self.device = self._end.device
            self._connection = self.device.connection(PROFILES[profile], sends=window, receives=1)
            undo.callback(self._connection.close)
            self._far = self._connect()
            self._undo = undo.pop_all()

    def _connect(self) -> Place:
        remote = msgspec.structs.replace(self.device.here(), qp=self._connection.qp_num)
        payloads = self.exchange("offer", msgspec.msgpack.encode(Offer(remote, self._end.place)))
        far = msgspec.msgpack.decode(payloads[1 - self._context.rank], type=Offer)
        self._connection.connect(far.remote)
        self.exchange("connected")
        return far.place

    def exchange(self, key: str, payload: bytes = b"") -> list[bytes]:
        """Wait for the other end at `key`, which is used once; returns both payloads by rank."""
        return self._context.exchange(f"link/{key}", self._context.rank, 2, payload)

    def send(self, size_bytes: int, messages: int) -> tuple[float, float]:
        """Write messages to the other end; returns when the first was posted and the last was completed, in s."""
        end, place = self._end, (self._far.address, self._far.rkey)
        return send(self._connection, end.waiter, end.local, place, size_bytes, messages, self._window)

    def check(self) -> None:
        """Raises UnhealthyError unless the memory has what the other end has written."""
        found = self._end.bytes
        wrong = int(np.count_nonzero(found != _pattern(found.size)))
        if wrong:
            raise UnhealthyError(f"job {self._context.job.id}: {wrong} of {found.size} bytes arrived wrong")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()


def send(
    connection: Connection,
    waiter: Waiter,
    local: tuple[int, int],
    remote: tuple[int, int],
    size_bytes: int,
    messages: int,
    window: int,
) -> tuple[float, float]:
    """Write `messages` times `size_bytes` from `local` to `remote` (address, key), at most `window` in flight.

    Returns when the first was posted and when the last was completed, on this host's monotonic clock. The clock is
    rarely read in between, since reading it takes virtual time. Raises UnhealthyError for a failed write, or if none
    completes any more after `_LONGEST_S`.
    """
    posted = completed = 0
    began = time.monotonic()
    while completed < messages:
        for _ in range(min(messages - posted, window - posted + completed)):
            connection.write(local, remote, size_bytes, immediate=None, signaled=True)
            posted += 1
        count = _completed(waiter)
        completed += count
        if not count and time.monotonic() - began > _LONGEST_S:
            raise UnhealthyError(f"{messages - completed} of {messages} writes over the link are not completed")
    return began, time.monotonic()


def _completed(waiter: Waiter) -> int:
    """How many writes have completed; 0 also for a notification of completions that were polled before."""
    completions = [completion for _, completion in waiter.wait(_LONGEST_S).completions]
    failed = next((completion.status for completion in completions if completion.status), "")
    if failed:
        raise UnhealthyError(f"a write over the link failed with {failed}; is the path between the hosts up?")
    return len(completions)


def _pattern(size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.resize(np.arange(1, _PERIOD + 1, dtype=np.uint8), size_bytes)
