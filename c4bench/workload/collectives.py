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
from typing import Any

import msgspec
import numpy as np

from c4bench.collective.communicator import Communicator
from c4bench.collective.errors import CollectiveError
from c4bench.collective.memory import Array
from c4bench.collective.options import Options
from c4bench.verbs.transport import PROFILES
from c4bench.workload.cases import WORLD, Argument, Call, Case, Deviation, Group, Outcome, Raised, arguments
from c4bench.workload.context import RankContext
from c4bench.workload.payload import Payload

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
        encoded = _exchange(context, f"case/{number}", b"")[-1]
        outcome = runner.run(number, msgspec.msgpack.decode(encoded, type=Case))
        _exchange(context, f"outcome/{number}", msgspec.msgpack.encode(outcome))


def _exchange(context: RankContext, key: str, payload: bytes) -> list[bytes]:
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
        world = self._keep(kept, lambda: self._connect(f"case{number}", _options(case.options)))
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


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401, PLC0415  (makes the name known to numpy; only where it is used)

    return np.dtype(name)


def _options(named: dict[str, Any]) -> Options:
    return Options(**named | ({"profile": PROFILES[named["profile"]]} if "profile" in named else {}))


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
