"""All-reduces while a NIC is lost, with one of several recovery methods, to compare costs (R2CCL, arXiv 2512.25059)."""

import time
from typing import Literal

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.options import Options
from c4bench.verbs.transport import BRISK
from c4bench.workload.context import RankContext
from c4bench.workload.payload import Payload


class Recovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`operations` all-reduces of `size_bytes`.

    `resilient` continues within the operation and spreads the lost NIC's load; `repair` moves it to one other NIC.
    `switch` changes only between operations (as AdapCC does): a failed operation is repeated from its input without the
    NIC. `restart` aborts, takes `restart_s` to start processes and read a checkpoint, and repeats everything since the
    last checkpoint, one of which is written every `saved_every` operations.
    """

    way: Literal["resilient", "repair", "switch", "restart"]
    operations: int
    size_bytes: int
    chunk_bytes: int = 0
    window: int = Options().window
    saved_every: int = 10
    restart_s: float = 0.0

    def options(self) -> Options:
        """The communicators' options."""
        in_place = self.way in ("resilient", "repair")
        return Options.of(self, resilient=in_place, spread=self.way != "repair", profile=BRISK)


def run(context: RankContext) -> None:
    """Report `ready` after the first operation, with the number of dead rails, and `recovery` at the end.

    `recovery` has when each operation first succeeded, by number.
    """
    parameters = context.parameters(Recovery)
    array = np.empty(parameters.size_bytes // 4, np.float32)
    done_s: dict[int, float] = {}
    without: frozenset[int] = frozenset()
    first = attempt = 0
    while first < parameters.operations:
        with context.communicator(f"attempt{attempt}", parameters.options(), without) as comm:
            reached = _reduce(context, comm, array, range(first, parameters.operations), done_s)
        if reached == parameters.operations:
            break
        attempt += 1
        lost, first = _agree(context, attempt, reached)
        without |= lost
        if parameters.way == "restart":
            time.sleep(parameters.restart_s)
            first -= first % parameters.saved_every
    context.report("recovery", done_s=[done_s[number] for number in range(parameters.operations)], attempts=attempt + 1)


def _reduce(
    context: RankContext,
    comm: Communicator,
    array: np.typing.NDArray[np.float32],
    numbers: range,
    done_s: dict[int, float],
) -> int:
    """Run operations; returns the number of the first that failed, or one past the last if none did."""
    for number in numbers:
        payload = Payload(comm.size, number)
        payload.fill(array, comm.rank)
        try:
            comm.all_reduce(array)
        except CollectiveError as error:
            comm.abandon(error)
            return number
        if payload.exact_reduced(array) < array.size:
            raise ArithmeticError(f"operation {number} is wrong")
        done_s.setdefault(number, time.time())
        if not number:
            context.report("ready", died=comm.resilience.died if comm.resilience else 0)
    return numbers.stop


class _Account(msgspec.Struct, frozen=True):
    """The numbers of a rank's NICs that are down, and of the operation that failed on it."""

    down: list[int]
    reached: int


def _agree(context: RankContext, attempt: int, reached: int) -> tuple[frozenset[int], int]:
    """The NICs that are down on any rank, and the first operation that failed on any rank."""
    own = msgspec.msgpack.encode(_Account(context.ports_down(), reached))
    payloads = context.exchange(f"failed/{attempt}", context.rank, context.size, own)
    accounts = [msgspec.msgpack.decode(raw, type=_Account) for raw in payloads]
    return frozenset(nic for each in accounts for nic in each.down), min(each.reached for each in accounts)
