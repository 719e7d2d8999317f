"""Collectives on demand: ranks run the cases that the master gives them, correct or deliberately wrong.

The master takes part in every exchange as an extra rank, so that a property test can draw, run and shrink its cases in
one job on one set of hosts.
"""

import mmap
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.memory import Array
from c4bench.collective.options import Options
from c4bench.workload.context import RankContext
from c4bench.workload.payload import Payload

Kind = Literal[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "send",
    "recv",
    "barrier",
]
WORLD = -1


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a collective, made `repeat` times, each after a pause of `late_s`.

    `count` is the items of an array, or of one rank's part if the array has a part for each. `peer` is the root, or the
    other rank of a send or receive. The communicator is the whole job's, or that of the case's group `group`; ranks
    outside the group skip the call. Each `step` has other numbers; repeated calls use the following steps. With
    `read_only` the input is a file mapped for reading, which no NIC may register. With `corrupt` rank 0 changes an
    element before the check, which must detect it.
    """

    kind: Kind
    dtype: str = "float32"
    count: int = 1
    op: str = "sum"
    peer: int = 0
    group: int = WORLD
    step: int = 0
    repeat: int = 1
    late_s: float = 0.0
    read_only: bool = False
    corrupt: bool = False


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split of the job: `colors` by rank, None for a rank outside all parts, and the `keys` that order each part."""

    colors: tuple[int | None, ...]
    keys: tuple[int, ...]


class Deviation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank does differently: make other calls, join late, or have only `memory_bytes` left to map."""

    calls: tuple[Call, ...] | None = None
    joins_after_s: float = 0.0
    memory_bytes: int | None = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls that every rank makes, except as `deviations` says by rank.

    `options` are the communicator's, with the profile by name. Communicators are kept between cases until a case is
    `fresh` or fails.
    """

    calls: tuple[Call, ...] = ()
    groups: tuple[Group, ...] = ()
    options: dict[str, Any] = {}
    deviations: dict[int, Deviation] = {}
    fresh: bool = False


class Raised(msgspec.Struct, frozen=True):
    """The exception that ended a rank's case, and when it was raised, on its host's clock.

    The fields of a CollectiveError are empty, or -1, for any other exception.
    """

    type: str
    message: str
    raised_s: float
    rank: int = -1
    comm: str = ""
    kind: str = ""
    seq: int = -1
    peer: int = -1
    status: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a case on one rank: how many elements were exact and checked, and the exception if it failed.

    `called_s` is when the rank began to connect, or made its last call.
    """

    exact: int
    checked: int
    called_s: float
    raised: Raised | None = None


class Expected(NamedTuple):
    """`items` that must equal the input of rank `source`, or the reduction named `source`, from item `first` on."""

    items: int
    source: int | str
    first: int = 0


class Argument(NamedTuple):
    """An array of a call: whether it is the rank's input, and what it must contain after the call."""

    is_input: bool
    expected: tuple[Expected, ...]

    @property
    def items(self) -> int:
        """The array's length."""
        return sum(expected.items for expected in self.expected)


def arguments(call: Call, rank: int, size: int) -> list[Argument]:
    """The arrays of a call on one rank of a communicator of `size`, in the order the method takes them."""
    return _ARGUMENTS[call.kind](call, rank, size)


def _input(items: int, source: int | str) -> Argument:
    return Argument(True, (Expected(items, source),))


def _output(*expected: Expected) -> Argument:
    return Argument(False, expected)


def _from_all(call: Call, size: int, first: int = 0) -> Argument:
    return _output(*(Expected(call.count, source, first) for source in range(size)))


_ARGUMENTS: dict[Kind, Callable[[Call, int, int], list[Argument]]] = {
    "all_reduce": lambda call, *_: [_input(call.count, call.op)],
    "reduce": lambda call, rank, _: [_input(call.count, call.op if rank == call.peer else rank)],
    "broadcast": lambda call, *_: [_input(call.count, call.peer)],
    "send": lambda call, rank, _: [_input(call.count, rank)],
    "recv": lambda call, *_: [_output(Expected(call.count, call.peer))],
    "reduce_scatter": lambda call, rank, size: [
        _output(Expected(call.count, call.op, rank * call.count)),
        _input(call.count * size, rank),
    ],
    "all_gather": lambda call, rank, size: [_from_all(call, size), _input(call.count, rank)],
    "all_to_all": lambda call, rank, size: [
        _from_all(call, size, rank * call.count),
        _input(call.count * size, rank),
    ],
    "barrier": lambda *_: [],
}


# Guard items on either side of every array, which nobody may write; they also keep arrays from being page-aligned.
_GUARD_ITEMS = 3
# Cases and steps use different numbers, so that leftovers of one are not taken for another's results.
_CASE_STEPS = 1009
# The master may give the next case at any time; a job that is not needed any more is stopped.
_NO_TIMEOUT_S = 1e6

METHODS: dict[str, Callable[[Communicator, Call, list[Array]], None]] = {
    "all_reduce": lambda comm, call, arrays: comm.all_reduce(arrays[0], call.op),
    "reduce_scatter": lambda comm, call, arrays: comm.reduce_scatter(arrays[0], arrays[1], call.op),
    "all_gather": lambda comm, _, arrays: comm.all_gather(arrays[0], arrays[1]),
    "broadcast": lambda comm, call, arrays: comm.broadcast(arrays[0], call.peer),
    "reduce": lambda comm, call, arrays: comm.reduce(arrays[0], call.peer, call.op),
    "all_to_all": lambda comm, _, arrays: comm.all_to_all(arrays[0], arrays[1]),
    "send": lambda comm, call, arrays: comm.send(arrays[0], call.peer),
    "recv": lambda comm, call, arrays: comm.recv(arrays[0], call.peer),
    "barrier": lambda comm, _, __: comm.barrier(),
}


def run(context: RankContext) -> None:
    """Run the master's cases until stopped: case n comes by exchange `case/n`, its outcome goes by `outcome/n`."""
    runner = Runner(context.rank, context.communicator)
    for number in count():
        encoded = exchange_with_master(context, f"case/{number}")[-1]
        outcome = runner.run(number, msgspec.msgpack.decode(encoded, type=Case))
        exchange_with_master(context, f"outcome/{number}", msgspec.msgpack.encode(outcome))


def exchange_with_master(context: RankContext, key: str, payload: bytes = b"") -> list[bytes]:
    """The payloads of all ranks, and of the master, which may take its time."""
    return context.exchange(key, context.rank, context.size + 1, payload, _NO_TIMEOUT_S)


class Runner:
    """Runs cases on one rank, and keeps their communicators; `connect` makes one by name and options."""

    def __init__(self, rank: int, connect: Callable[[str, Options], Communicator]) -> None:
        self._rank = rank
        self._connect = connect
        self._kept: dict[Any, Communicator | None] = {}
        self._open = ExitStack()

    def run(self, number: int, case: Case) -> Outcome:
        """Run a case to its end or its failure."""
        deviation = case.deviations.get(self._rank, Deviation())
        if case.fresh:
            self._drop(None)
        time.sleep(deviation.joins_after_s)
        tally, raised = _Tally(time.time()), None
        try:
            with _memory_left(deviation.memory_bytes):
                self._calls(number, case, deviation, tally)
        except Exception as error:  # any exception must reach the master
            raised = _raised(error)
            self._drop(error)
        return Outcome(tally.exact, tally.checked, tally.called_s, raised)

    def _calls(self, number: int, case: Case, deviation: Deviation, tally: "_Tally") -> None:
        comms = self._communicators(number, case)
        for call in case.calls if deviation.calls is None else deviation.calls:
            comm = comms[call.group]
            if comm is not None:
                for again in range(call.repeat):
                    _call(comm, call, Payload(comm.size, number * _CASE_STEPS + call.step + again), tally)

    def _communicators(self, number: int, case: Case) -> dict[int, Communicator | None]:
        """The communicators of the whole job and of the groups, by group number."""
        kept = tuple(sorted(case.options.items()))
        world = self._keep(kept, lambda: self._connect(f"case{number}", Options.of(case, **case.options)))
        assert world is not None
        groups = [self._keep((kept, group), partial(self._split, world, group)) for group in case.groups]
        return {WORLD: world, **dict(enumerate(groups))}

    def _keep(self, key: object, make: Callable[[], Communicator | None]) -> Communicator | None:
        if key not in self._kept:
            communicator = self._kept[key] = make()
            if communicator is not None:
                self._open.enter_context(communicator)
        return self._kept[key]

    def _split(self, world: Communicator, group: Group) -> Communicator | None:
        return world.split(group.colors[self._rank], group.keys[self._rank])

    def _drop(self, error: Exception | None) -> None:
        """Close the communicators; after an error notify the other members."""
        self._kept.clear()
        self._open.__exit__(type(error) if error else None, error, None)


class _Tally:
    """The elements compared in a case so far, and when the last call was made."""

    def __init__(self, called_s: float) -> None:
        self.called_s = called_s
        self.exact = self.checked = 0

    def add(self, exact: int, checked: int) -> None:
        self.exact += exact
        self.checked += checked


def _call(comm: Communicator, call: Call, payload: Payload, tally: _Tally) -> None:
    """Make a call and compare every element of its arrays, including inputs and guards."""
    time.sleep(call.late_s)
    expected = arguments(call, comm.rank, comm.size)
    guarded = [_array(call, argument, payload, comm.rank) for argument in expected]
    arrays = [_inner(whole) for whole in guarded]
    tally.called_s = time.time()
    METHODS[call.kind](comm, call, arrays)
    if call.corrupt and comm.rank == 0:
        arrays[0][arrays[0].size // 2] += 1
    for whole, argument in zip(guarded, expected, strict=True):
        tally.add(_exact(whole, argument, payload), whole.size)


def _array(call: Call, argument: Argument, payload: Payload, rank: int) -> Array:
    """An array for a call, between guards: the rank's input, or zeros, which no payload or result contains."""
    whole = np.zeros(argument.items + 2 * _GUARD_ITEMS, _dtype(call.dtype))
    if argument.is_input:
        payload.fill(_inner(whole), rank)
    return _read_only(whole) if call.read_only and argument.is_input else whole


def _inner(whole: Array) -> Array:
    return whole[_GUARD_ITEMS:-_GUARD_ITEMS]


def _read_only(array: Array) -> Array:
    """A copy in a file mapped read-only."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(array.tobytes())
        with Path(file.name).open("rb") as again:
            mapped = mmap.mmap(again.fileno(), array.nbytes, prot=mmap.PROT_READ)
    return np.frombuffer(mapped, array.dtype)


def _exact(whole: Array, argument: Argument, payload: Payload) -> int:
    """How many elements are as expected, including guards."""
    guards = np.concatenate((whole[:_GUARD_ITEMS], whole[-_GUARD_ITEMS:]))
    return exact_elements(_inner(whole), argument, payload) + guards.size - int(np.count_nonzero(guards))


def exact_elements(array: Array, argument: Argument, payload: Payload) -> int:
    """How many elements of a call's array are as expected after the call."""
    exact = start = 0
    for items, source, first in argument.expected:
        stretch = array[start : start + items]
        exact += (
            payload.exact_input(stretch, source, first)
            if isinstance(source, int)
            else payload.exact_reduced(stretch, source, first)
        )
        start += items
    return exact


# Of these, `Call.count` is the items of a part.
_SHARED_OUT = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


def sized_call(kind: Kind, size_bytes: int, ranks: int) -> Call:
    """A call on float32, as each of so many ranks makes it; `size_bytes` are the larger array's, in whole parts."""
    items = size_bytes // np.dtype(np.float32).itemsize
    return Call(kind, count=items // ranks if kind in _SHARED_OUT else items)


class RepeatedCall:
    """A call that a rank makes again and again on the same arrays, with other numbers in each step."""

    def __init__(self, call: Call, rank: int, ranks: int) -> None:
        self._call, self._rank, self._payload = call, rank, Payload(ranks)
        self._expected = arguments(call, rank, ranks)
        self.arrays: list[Array] = [np.empty(argument.items, call.dtype) for argument in self._expected]
        self.items = sum(array.size for array in self.arrays)

    def fill(self, step: int) -> None:
        """Write the inputs of a step."""
        self._payload = self._payload._replace(step=step)
        for array, argument in zip(self.arrays, self._expected, strict=True):
            if argument.is_input:
                self._payload.fill(array, self._rank)

    def __call__(self, comm: Communicator) -> None:
        """Make the call."""
        METHODS[self._call.kind](comm, self._call, self.arrays)

    def exact(self) -> int:
        """How many elements are as expected after the step."""
        pairs = zip(self.arrays, self._expected, strict=True)
        return sum(exact_elements(array, argument, self._payload) for array, argument in pairs)


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401, PLC0415  (makes the name known to numpy; only where it is used)

    return np.dtype(name)


@contextmanager
def _memory_left(left_bytes: int | None) -> Iterator[None]:
    """Limit the memory that this process may still map; None for no limit."""
    if left_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + left_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _raised(error: Exception) -> Raised:
    now_s, name = time.time(), type(error).__name__
    if not isinstance(error, CollectiveError):
        return Raised(name, str(error), now_s)
    return Raised(name, str(error), now_s, error.rank, error.comm, error.kind, error.seq, error.peer, error.status)
