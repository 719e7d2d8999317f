"""Which events happen at which packets, in which order they are tried, and the file that repeats one."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from c4bench.decoding import DecodingError, from_json
from c4bench.errors import UsageError
from c4bench.exhaust.program import Program
from c4bench.files import read_bounded

# See machine/rxe_events.c, which carries them out.
SentEvent = Literal["lost", "duplicated", "delayed", "down-before", "down-after", "killed", "both"]
ReceivedEvent = Literal["far-before", "far-after"]
What = SentEvent | ReceivedEvent
SENT: tuple[What, ...] = get_args(SentEvent)
RECEIVED: tuple[What, ...] = get_args(ReceivedEvent)
EVENTS = SENT + RECEIVED
# These end the process that owns the packet's queue pair.
KILLING = frozenset({"killed", "both"})


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that happens at packet `number`, counted from 1 over all NICs: as it is sent, or as it is received."""

    what: What
    number: int

    def __str__(self) -> str:
        return f"{self.what}:{self.number}"


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


def ordered(counts: Counts, kinds: Sequence[What], seed: int, shard: Shard) -> list[Event]:
    """Every event at every packet, in an order that the seed draws, so that the first n are a sample of all."""
    events = [Event(what, number) for what in kinds for number in range(1, counts.of(what) + 1)]
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


def chosen(names: Sequence[str]) -> list[What]:
    """The events of these names, all of them if there are none. Raises UsageError for another name."""
    if unknown := [name for name in names if name not in EVENTS]:
        raise UsageError(f"no event {', '.join(unknown)}: give {', '.join(EVENTS)}")
    return [what for what in EVENTS if not names or what in names]
