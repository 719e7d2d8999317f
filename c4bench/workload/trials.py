"""Collectives back to back while something is broken: exact or not, and how long each took.

The master takes part in every exchange as one more rank: trial n is what it gives to `trial/n`, and `ended/n` takes
each rank's account.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.options import Options
from c4bench.collective.resilience import Resilience
from c4bench.verbs.transport import PROFILES
from c4bench.workload.cases import Call, Kind, arguments
from c4bench.workload.collectives import METHODS, exact_elements
from c4bench.workload.context import RankContext
from c4bench.workload.payload import Payload

_PATIENCE_S = 1e6
_SHARED_OUT = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


class Trials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the ranks are connected; a new communicator for the first trial after an error."""

    resilient: bool = True
    chunk_bytes: int = 32 << 10
    channels: int = 0
    profile: str = "brisk"
    paths: str = "ecmp"
    timeout_s: float = 20.0

    def options(self) -> Options:
        """What the communicator is asked for."""
        return Options(
            resilient=self.resilient,
            chunk_bytes=self.chunk_bytes,
            staging_bytes=16 * self.chunk_bytes,
            channels=self.channels,
            profile=PROFILES[self.profile],
            paths=self.paths,
            timeout_s=self.timeout_s,
        )


class Trial(msgspec.Struct, frozen=True):
    """Run `kind` on arrays of about `size_bytes` until `seconds` are over, each time after `idle_s`.

    With `corrupt` rank 0 changes one element before the first check, which must notice. `without` are ranks that leave
    the communicator first, and take no further part.
    """

    kind: Kind
    size_bytes: int
    seconds: float
    idle_s: float = 0.0
    corrupt: bool = False
    fresh: bool = False
    without: tuple[int, ...] = ()


class Account(msgspec.Struct, frozen=True):
    """How a trial went on one rank: elements, when each operation began and ended, what resilience did, any error.

    `lost` is the rank that a HOST_LOST names, -1 where there is none.
    """

    exact: int
    checked: int
    spans: tuple[tuple[float, float], ...]
    resilience: Resilience | None
    error: str = ""
    error_s: float = 0.0
    lost: int = -1


def run(context: RankContext) -> None:
    """Run the master's trials until stopped."""
    wanted = context.parameters(Trials)
    comm: Communicator | None = None
    with ExitStack() as undo:
        for number in count():
            given = _exchange(context, f"trial/{number}", b"")[-1]
            trial = msgspec.msgpack.decode(given, type=Trial)
            if trial.without and comm is not None and context.rank not in trial.without:
                comm = undo.enter_context(comm.shrink(trial.without))
            elif comm is None or trial.fresh:
                comm = undo.enter_context(context.communicator(f"trial{number}", wanted.options()))
            account = _run(comm, trial) if context.rank not in trial.without else Account(0, 0, (), None)
            _exchange(context, f"ended/{number}", msgspec.msgpack.encode(account))


def _exchange(context: RankContext, key: str, payload: bytes) -> list[bytes]:
    return context.meet(context.job.id, key, context.rank, context.size + 1, payload, _PATIENCE_S)


def _run(comm: Communicator, trial: Trial) -> Account:
    spans: list[tuple[float, float]] = []
    exact = checked = 0
    try:
        for more in _operations(comm, trial, spans):
            exact += more[0]
            checked += more[1]
    except CollectiveError as error:
        comm.abandon(error)
        lost = error.peer if "no NIC left" in error.message else -1
        return Account(exact, checked, tuple(spans), comm.resilience, str(error), time.time(), lost)
    return Account(exact, checked, tuple(spans), comm.resilience)


def _operations(comm: Communicator, trial: Trial, spans: list[tuple[float, float]]) -> Iterator[tuple[int, int]]:
    """Exact and checked elements of one operation after another; rank 0 says when it is time to stop."""
    items = trial.size_bytes // 4
    call = Call(trial.kind, count=items // comm.size if trial.kind in _SHARED_OUT else items)
    told = arguments(call, comm.rank, comm.size)
    held = [np.empty(argument.items, np.float32) for argument in told]
    going_on = np.ones(1, np.int32)
    until = time.time() + trial.seconds
    for step in count():
        payload = Payload(comm.size, step)
        for array, argument in zip(held, told, strict=True):
            array.fill(0)
            if argument.given:
                payload.fill(array, comm.rank)
        time.sleep(trial.idle_s)
        began = time.time()
        METHODS[call.kind](comm, call, held)
        spans.append((began, time.time()))
        if trial.corrupt and not step and comm.rank == 0:
            held[0][0] += 1
        yield (
            sum(exact_elements(array, argument, payload) for array, argument in zip(held, told, strict=True)),
            sum(array.size for array in held),
        )
        if comm.rank == 0:
            going_on[0] = time.time() < until
        comm.broadcast(going_on)
        if not going_on[0]:
            return
