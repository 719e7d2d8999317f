"""Look for the smallest program that goes wrong by the same event."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from c4bench.errors import UsageError
from c4bench.exhaust.outcome import Outcome
from c4bench.exhaust.program import Program
from c4bench.exhaust.trials import Counts, Event


class Found(NamedTuple):
    """A trial that went wrong, and how many packets its program has."""

    program: Program
    event: Event
    counts: Counts
    outcome: Outcome


Attempt = Callable[[Program, Event], Outcome]
Count = Callable[[Program], Counts | None]


def smallest(
    program: Program, counts: Counts, wrong: Sequence[Event], attempt: Attempt, count: Count, tries: int
) -> Found | None:
    """The smallest program for the first of these events that goes wrong again; None where none does.

    A program that goes wrong once and not again is not given: the larger one is.
    """
    for event in wrong:
        outcome = attempt(program, event)
        if outcome.verdict == "wrong":
            found = Found(program, event, counts, outcome)
            better = shrink(found, attempt, count, tries)
            again = better is found or attempt(better.program, better.event).verdict == "wrong"
            return better if again else found
    return None


def smaller(program: Program) -> Iterator[Program]:
    """Programs with fewer ranks, fewer operations or fewer bytes, those that leave out most first."""
    for name, least in (("ranks", 2), ("operations", 1), ("size_bytes", 4)):
        value = getattr(program, name)
        for fewer in sorted({least, value // 4, value // 2, value - 1}):
            if least <= fewer < value:
                yield from _changed(program, name, fewer)


def _changed(program: Program, name: str, value: int) -> Iterator[Program]:
    try:
        yield replace(program, **{name: value})
    except UsageError:
        return


def shrink(found: Found, attempt: Attempt, count: Count, tries: int) -> Found:
    """The smallest program that goes wrong within so many tries, at its first packet that does.

    `count` is how many packets an undisturbed program has, None where it is not exact. A program is given up after the
    first that goes wrong: it is smaller, and the search goes on from there.
    """
    left = tries
    while True:
        for program in smaller(found.program):
            counts = count(program)
            if counts is None:
                continue
            better, left = _first_wrong(program, counts, found.event, attempt, left)
            if better or not left:
                break
        else:
            return found
        if not better:
            return found
        found = better


def _first_wrong(
    program: Program, counts: Counts, event: Event, attempt: Attempt, left: int
) -> tuple[Found | None, int]:
    """The first packet of a program at which the event goes wrong, and how many tries are left."""
    for number in range(1, counts.of(event.what) + 1):
        if not left:
            return None, 0
        left -= 1
        tried = replace(event, number=number)
        outcome = attempt(program, tried)
        if outcome.verdict == "wrong":
            return Found(program, tried, counts, outcome), left
    return None, left
