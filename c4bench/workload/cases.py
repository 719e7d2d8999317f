"""The cases of a `collectives` job, and the ranks' outcomes."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

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
