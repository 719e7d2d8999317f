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


# So many packets of a program are tried: others may show the bug at the first one.
_PACKETS_OF_PROGRAM = 24
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
    """Programs with fewer ranks, operations, NICs, slots or bytes, those that leave out most first."""
    own = (("nics_each", 2), ("slots", 1)) if program.resilient else ()
    for name, least in (("ranks", 2), ("operations", 1), *own, ("size_bytes", 4)):
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
    """The smallest program that goes wrong within so many tries, at one of its packets.

    `count` is how many packets an undisturbed program has, None where it is not exact. A program is given up after the
    first that goes wrong: it is smaller, and the search goes on from there. None is tried again.
    """
    left = tries
    seen: set[Program] = set()
    while True:
        for program in smaller(found.program):
            counts = count(program) if program not in seen else None
            seen.add(program)
            if counts is None:
                continue
            better, left = _first_wrong(program, counts, found, attempt, left)
            if better or not left:
                break
        else:
            return found
        if not better:
            return found
        found = better


def _first_wrong(
    program: Program, counts: Counts, like: Found, attempt: Attempt, left: int
) -> tuple[Found | None, int]:
    """A packet at which the event goes wrong, if there is one among the nearest, and how many tries are left."""
    for number in _nearest(like.event.number, like.counts.of(like.event.what), counts.of(like.event.what)):
        if not left:
            return None, 0
        left -= 1
        tried = replace(like.event, number=number)
        outcome = attempt(program, tried)
        if outcome.verdict == "wrong":
            return Found(program, tried, counts, outcome), left
    return None, left


def _nearest(number: int, of: int, most: int) -> list[int]:
    """Packets of a program with `most`, those first that are about as far in it as `number` is in one with `of`."""
    place = number * most / of
    return sorted(range(1, most + 1), key=lambda each: abs(each - place))[:_PACKETS_OF_PROGRAM]
