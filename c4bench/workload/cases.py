"""What the ranks of a `collectives` job are asked to do, and what they answer."""

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
    """One call of a collective, `repeat` times over, each after a pause of `late_s`.

    `count` items are an array, or one rank's part where the array has a part for each. `peer` is the root, or whom to
    send to or receive from, as a rank of the communicator: the whole job's, or that of the case's group `group`; a rank
    outside the group leaves the call out. Calls of another `step` give other numbers, repeated ones those of the steps
    that follow. With `read_only` what the rank gives lies in a file mapped for reading, which no NIC may register; with
    `corrupt` rank 0 changes an element before the check, which must notice.
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
    """A split of the job: `colors` by rank, None for a rank that takes no part, and the `keys` that order each part."""

    colors: tuple[int | None, ...]
    keys: tuple[int, ...]


class Deviation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank does otherwise: make other calls, come late, have only so much memory left to map."""

    calls: tuple[Call, ...] | None = None
    joins_after_s: float = 0.0
    memory_bytes: int | None = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls that every rank makes, but for the ranks in `deviations`.

    `options` are those of the communicator, the profile by its name. Communicators are kept from case to case, until
    one is `fresh` or fails.
    """

    calls: tuple[Call, ...] = ()
    groups: tuple[Group, ...] = ()
    options: dict[str, Any] = {}
    deviations: dict[int, Deviation] = {}
    fresh: bool = False


class Raised(msgspec.Struct, frozen=True):
    """The exception that ended a rank's case, and when it was raised, on its host's clock.

    Fields that only a CollectiveError has are empty, or -1, for any other.
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
    """How a case went on one rank: elements compared, elements exact, and how it ended if not well.

    `called_s` is when the rank began to connect, or made its last call.
    """

    exact: int
    checked: int
    called_s: float
    raised: Raised | None = None


class Expected(NamedTuple):
    """A stretch of `items` that must hold what rank `source` gives, or its reduction by that name, from `first` on."""

    items: int
    source: int | str
    first: int = 0


class Argument(NamedTuple):
    """An array of a call: whether it holds what the rank gives, or nothing; and what it must hold after the call."""

    is_input: bool
    expected: tuple[Expected, ...]

    @property
    def items(self) -> int:
        """Its length."""
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
