"""Which events happen at which packets, in which order they are tried, and the file that repeats one."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.exhaust.program import Program
from c4bench.files import read_bounded

# See machine/rxe_events.c, which carries them out.
SentEvent = Literal["lost", "duplicated", "delayed", "down-before", "down-after", "killed", "both"]
ReceivedEvent = Literal["far-before", "far-after"]
Repair = Literal["repaired"]
What = SentEvent | ReceivedEvent | Repair
SENT: tuple[What, ...] = get_args(SentEvent)
RECEIVED: tuple[What, ...] = get_args(ReceivedEvent)
EVENTS = SENT + RECEIVED
(REPAIRED,) = get_args(Repair)
# A NIC's own retries end within 67 ms.
_REPAIRED_MS_MOST = 50
_TRIALS_AT_MOST = 1 << 20
# These end the process that owns the packet's queue pair.
KILLING = frozenset({"killed", "both"})


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that happens at packet `number`, counted from 1 over all NICs: as it is sent, or as it is received.

    `also` is a second event of the same trial. `repaired` can only be that: NICs that have lost their links get them
    back `number` ms later.
    """

    what: What
    number: int
    also: "Event | None" = None

    def __str__(self) -> str:
        return "+".join(f"{event.what}:{event.number}" for event in self.all)

    @property
    def all(self) -> "tuple[Event, ...]":
        """The event, and the second one."""
        return (self, self.also) if self.also else (self,)

    @property
    def kind(self) -> str:
        """What happens, as the command has it."""
        return "+".join(event.what for event in self.all)


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many packets a program sends and receives when nothing happens."""

    sent: int
    received: int

    def of(self, what: What) -> int:
        """At how many packets this event can happen."""
        return self.sent if what in SENT else self.received


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part `number` (from 1) of the `of` parts into which the trials are divided."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise UsageError(f"shard {self.number}/{self.of} does not exist; use 1/{self.of} to {self.of}/{self.of}")


def ordered(counts: Counts, kinds: Sequence[str], seed: int, shard: Shard) -> list[Event]:
    """Every event at every packet, in an order that the seed draws, so that the first n are a sample of all."""
    events = [event for kind in kinds for event in _every(kind, counts)]
    random.Random(seed).shuffle(events)
    return events[shard.number - 1 :: shard.of]


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trial that went wrong, as a file that repeats it: `packets` is how many the program sends without the event."""

    program: Program
    seed: int
    event: Event
    packets: int
    verdict: str
    detail: str


def read_replay(path: Path) -> Replay:
    """The trial in a file. Raises UsageError for a file that is none."""
    try:
        return from_json(read_bounded(path), Replay)
    except (DecodingError, OSError) as error:
        raise UsageError(f"{path}: {error}; give a file that `c4bench exhaust` has written") from None


def _every(kind: str, counts: Counts) -> list[Event]:
    first, *second = (_at_each(what, counts) for what in _parts(kind))
    if not second:
        return first
    if len(first) * len(second[0]) > _TRIALS_AT_MOST:
        raise UsageError(f"{kind} has more than {_TRIALS_AT_MOST} trials: make the program smaller")
    return [replace(event, also=also) for event in first for also in second[0]]


def _at_each(what: What, counts: Counts) -> list[Event]:
    most = _REPAIRED_MS_MOST if what == REPAIRED else counts.of(what)
    return [Event(what, number) for number in range(1, most + 1)]


def _parts(kind: str) -> list[What]:
    """The one or two events of a trial. Raises UsageError for others."""
    first, _, second = kind.partition("+")
    if first not in EVENTS or second not in {"", *EVENTS, REPAIRED}:
        raise UsageError(
            f"no event {kind}: give {', '.join(EVENTS)}, or two with a + between, the second {REPAIRED} too"
        )
    return [what for what in (*EVENTS, REPAIRED) if what == first] + [
        what for what in (*EVENTS, REPAIRED) if what == second
    ]


def chosen(kinds: Sequence[str]) -> list[str]:
    """These kinds of events, all single ones if there are none. Raises UsageError for another one."""
    for kind in kinds:
        _parts(kind)
    return [*(what for what in EVENTS if not kinds or what in kinds), *(kind for kind in kinds if kind not in EVENTS)]
