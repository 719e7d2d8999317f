"""What files of finished operations hold, in few lines: communicators, their operations, durations and missing ranks.

Whoever comes last to an operation spends the least time in it; the others wait, which no faster network would change.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from c4bench.evidence.judging.join import grouped
from c4bench.evidence.judging.slowness import ONE_WAY
from c4bench.evidence.limits import MOST_RANKS
from c4bench.model.evidence import FLIGHT_RECORDER, Call, CallState, MemberEvidence, Reading

_LINES = 32
_NUMBERS = 6
_MOST_CALLS = 1_000_000  # of a communicator; of more, only their number is said
_WORLD = "0"
# A member is late if it spent less than this share of the others' time, and that is not a matter of little.
_SHARE, _LEAST_S = 0.5, 1e-3


class _Seen(NamedTuple):
    """A finished operation of a member, which is known by its rank in the job, or else in the communicator."""

    who: str
    host: str
    call: Call


class Contents(NamedTuple):
    """What the files hold in `lines`, and whether these have that any rank came late to an operation."""

    lines: tuple[str, ...]
    late: bool


def contents(reading: Reading) -> Contents:
    """What the files hold beside what their readers say of them, at most so many lines."""
    finished = [one for one in reading.members if one.format != FLIGHT_RECORDER and (one.calls or one.transfers)]
    found = [line for ones in grouped(finished, lambda one: one.comm).values() for line in _communicator(ones)]
    lines = [line for line, _ in found]
    more = [f"and {len(lines) - _LINES} more such lines"] if len(lines) > _LINES else []
    return Contents((*reading.shown, *lines[:_LINES], *more), any(late for _, late in found))


def _communicator(ones: list[MemberEvidence]) -> Iterator[tuple[str, bool]]:
    """The lines of a communicator, and of each whether it says that a rank came late."""
    size, missing = max(one.size for one in ones), _missing(ones)
    if (calls := sum(len(one.calls) + len(one.transfers) for one in ones)) > _MOST_CALLS:
        yield f"{ones[0].comm}: {calls} operations of {len(ones)} ranks", False
        return
    by_kind: dict[str, list[_Seen]] = {}
    for one in ones:
        for call in (*one.calls, *one.transfers):
            if call.state is CallState.COMPLETED:
                by_kind.setdefault(call.kind, []).append(_Seen(_who(one), one.host, call))
    for kind, seen in by_kind.items():
        group = f"group {ones[0].comm}" if ones[0].comm.isdecimal() else ones[0].comm
        name = group if kind in group.split() else f"{group}: {kind}"
        members = list(dict.fromkeys(one.who for one in seen))
        more = f" and {len(members) - _NUMBERS} more" if len(members) > _NUMBERS else ""
        of = f", {', '.join(members[:_NUMBERS])}{more}"
        left_none = f"; no file of ranks {_numbers(missing)} of it" if missing else ""
        yield f"{name}{f' ({size} ranks)' if size else ''}: {_operations(seen)}{of}{left_none}", False
        if kind not in ONE_WAY:
            yield from ((line, True) for line in _late(name, seen))


def _missing(ones: list[MemberEvidence]) -> list[int]:
    """The ranks of a communicator of which no file tells: in the job's numbers if its ranks are known, else its own."""
    listed = next((one.members for one in ones if one.members), ())
    if listed:
        return sorted(set(listed) - {one.rank for one in ones})
    size = max(one.size for one in ones)
    if size > MOST_RANKS:
        return []
    numbers = [one.rank if one.comm == _WORLD and one.rank >= 0 else one.member for one in ones]
    return sorted(set(range(size)) - set(numbers)) if min(numbers) >= 0 else []


def _who(one: MemberEvidence) -> str:
    if one.rank >= 0 or one.member >= 0:
        return f"rank {one.rank if one.rank >= 0 else one.member}" + (f" on {one.host}" if one.host else "")
    return f"a rank that is not known ({one.source})"


def _operations(seen: Sequence[_Seen]) -> str:
    """How many operations, their numbers, sizes, and times."""
    numbers = sorted({one.call.seq for one in seen})
    sizes = sorted({(one.call.size_bytes, one.call.dtype) for one in seen if one.call.size_bytes >= 0})
    took_ms = [one.call.duration_s * 1e3 for one in seen if one.call.duration_s > 0]
    words = [f"{len(numbers)} operation{'s' if len(numbers) > 1 else ''} (#{_numbers(numbers)})"]
    if sizes:
        shown = (f"{size}{f' of {dtype}' if dtype else ''}" for size, dtype in sizes[:_NUMBERS])
        words.append(f"bytes {', '.join(shown)}{' ...' if len(sizes) > _NUMBERS else ''}")
    if took_ms:
        words.append(f"{min(took_ms):.4g} to {max(took_ms):.4g} ms")
    return ", ".join(words)


def _late(name: str, seen: Sequence[_Seen]) -> Iterator[str]:
    """The members that others waited for: in which operations, and for how long."""
    operations = [ones for ones in grouped(seen, lambda one: one.call.seq).values() if len(ones) > 1]
    waits: dict[str, list[tuple[int, float, float, float]]] = {}
    for ones in operations:
        first, *others = sorted(ones, key=lambda one: one.call.duration_s)
        usual_s = statistics.median(one.call.duration_s for one in others)
        least_s = first.call.duration_s
        if 0 < least_s < _SHARE * usual_s and usual_s - least_s > _LEAST_S:
            waits.setdefault(first.who, []).append((first.call.seq, _behind_s(first, others), least_s, usual_s))
    for who, late in waits.items():
        behind_ms = sorted(one[1] * 1e3 for one in late)
        least_ms, usual_ms = (statistics.median(one[place] for one in late) * 1e3 for place in (2, 3))
        which = f"{len(late)} of {len(operations)} of {name} (#{_numbers(one[0] for one in late)})"
        yield (
            f"{who} came late to {which}, by {behind_ms[0]:.3g} to {behind_ms[-1]:.3g} ms, if clocks agree: it spent "
            f"{least_ms:.3g} ms there, others {usual_ms:.3g} ms; they waited, which is no slow network"
        )


def _behind_s(first: _Seen, others: Sequence[_Seen]) -> float:
    """How long after the others a member began; where beginnings are not known, how much less time it spent."""
    if min(one.call.created_s for one in (first, *others)) > 0:
        return first.call.created_s - statistics.median(one.call.created_s for one in others)
    return statistics.median(one.call.duration_s for one in others) - first.call.duration_s


def _numbers(numbers: Iterable[int]) -> str:
    """`88, 101-103`, at most so many parts."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:_NUMBERS]]
    return ", ".join(shown) + (" ..." if len(found) > _NUMBERS else "")
