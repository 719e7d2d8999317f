"""Collectives back to back during faults: whether each is exact, and how long each takes.

The master takes part in every exchange as an extra rank: it gives trial n to `trial/n`, all meet at `ready/n` once they
are connected, and `ended/n` takes each rank's account.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.engine import ResilienceCounters
from c4bench.collective.errors import CollectiveError
from c4bench.collective.options import Options
from c4bench.workload.collectives import Kind, RepeatedCall, exchange_with_master, sized_call
from c4bench.workload.context import RankContext

# Ranks agree on whether to stop after this many operations, so that agreeing costs less than the operations.
AGREE_EVERY = 3


class Trials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the ranks' connections."""

    resilient: bool = True
    chunk_bytes: int = 64 << 10
    channels: int = 0
    profile: str = "brisk"
    paths: str = "ecmp"
    timeout_s: float = 20.0
    window: int = 2
    algorithm: str = Options().algorithm
    split_bytes: int = Options().split_bytes

    def options(self) -> Options:
        """The communicator's options."""
        return Options.of(self, staging_bytes=max(Options().staging_bytes, self.chunk_bytes))


class Trial(msgspec.Struct, frozen=True):
    """Run `kind` on arrays of about `size_bytes` for `seconds`, each operation after `idle_s`.

    It ends earlier, `enough` operations after one in which a rail died. With `corrupt` rank 0 changes one element
    before the first check, which must detect it. A `fresh` trial has a new communicator. The ranks in `without` leave
    the communicator first.
    """

    kind: Kind
    size_bytes: int
    seconds: float
    idle_s: float = 0.0
    enough: int = 1 << 30
    corrupt: bool = False
    fresh: bool = False
    without: tuple[int, ...] = ()


class Account(msgspec.Struct, frozen=True):
    """The result of a trial on one rank: elements, when each operation began and ended, resilience counters, any error.

    `lost` is the rank that a HOST_LOST error names, else -1. `agreed` are the small operations by which ranks agree on
    when to stop.
    """

    exact: int
    checked: int
    spans: tuple[tuple[float, float], ...]
    resilience: ResilienceCounters | None
    error: str = ""
    error_s: float = 0.0
    lost: int = -1
    agreed: tuple[tuple[float, float], ...] = ()


def run(context: RankContext) -> None:
    """Run the master's trials until stopped."""
    parameters = context.parameters(Trials)
    comm: Communicator | None = None
    with ExitStack() as undo:
        for number in count():
            encoded = exchange_with_master(context, f"trial/{number}")[-1]
            trial = msgspec.msgpack.decode(encoded, type=Trial)
            if trial.without and comm is not None and context.rank not in trial.without:
                comm = undo.enter_context(comm.shrink(trial.without))
            elif comm is None or trial.fresh:
                undo.close()
                comm = undo.enter_context(context.communicator(f"trial{number}", parameters.options()))
            exchange_with_master(context, f"ready/{number}")
            account = _run(comm, trial) if context.rank not in trial.without else Account(0, 0, (), None)
            exchange_with_master(context, f"ended/{number}", msgspec.msgpack.encode(account))


def _run(comm: Communicator, trial: Trial) -> Account:
    spans: list[tuple[float, float]] = []
    agreed: list[tuple[float, float]] = []
    exact = checked = 0
    try:
        for more in _operations(comm, trial, spans, agreed):
            exact += more[0]
            checked += more[1]
    except CollectiveError as error:
        comm.abandon(error)
        lost = error.peer if "HOST_LOST" in (error.status, error.cause) else -1
        return Account(exact, checked, tuple(spans), comm.resilience, str(error), time.time(), lost)
    return Account(exact, checked, tuple(spans), comm.resilience, agreed=tuple(agreed))


def _operations(
    comm: Communicator, trial: Trial, spans: list[tuple[float, float]], agreed: list[tuple[float, float]]
) -> Iterator[tuple[int, int]]:
    """Yield the exact and checked elements of each operation, until rank 0 decides to stop."""
    call = RepeatedCall(sized_call(trial.kind, trial.size_bytes, comm.size), comm.rank, comm.size)
    stop = np.zeros(2, np.int32)
    until, died, left = time.time() + trial.seconds, _died(comm), trial.enough
    for step in count():
        for array in call.arrays:
            array.fill(0)
        call.fill(step)
        time.sleep(trial.idle_s)
        began = time.time()
        call(comm)
        spans.append((began, time.time()))
        if trial.corrupt and not step and comm.rank == 0:
            call.arrays[0][0] += 1
        yield call.exact(), call.items
        if step % AGREE_EVERY:
            continue
        stop[:] = comm.rank == 0 and time.time() >= until, _died(comm) > died
        began = time.time()
        comm.all_reduce(stop, "max")
        agreed.append((began, time.time()))
        left -= AGREE_EVERY * int(stop[1])
        if stop[0] or left <= 0:
            return


def _died(comm: Communicator) -> int:
    return comm.resilience.died if comm.resilience else 0
