"""What the ends of a trial's ranks mean: the result is exact, or an error says that there is none, or it is wrong."""

from collections.abc import Mapping
from typing import Literal

import msgspec

Verdict = Literal["exact", "loud", "wrong"]
_LONGEST = 300


class RankEnd(msgspec.Struct, frozen=True):
    """How a rank ended: elements exact and checked, and what was raised, if anything was.

    `status` is that of a CollectiveError; `known` says that the error is one of c4bench's own. `late` counts elements
    that changed after the call that wrote them. `signal` is that which ended the process, 0 for none. `said` is what an
    attached program has printed last.
    """

    exact: int = 0
    checked: int = 0
    late: int = 0
    raised: str = ""
    status: str = ""
    known: bool = True
    signal: int = 0
    said: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a trial. `wrong` is silent corruption, a rank that hangs, or an error that nobody foresaw.

    An operation that only its own time-out ends has hung, unless a process was killed, of which nobody may ever hear.
    """

    verdict: Verdict
    detail: str = ""


def judge(ends: Mapping[int, RankEnd], ranks: int, limit_s: float, *, killed: bool) -> Outcome:
    """The outcome of a trial in which these ranks have ended; with `killed` one of them was ended on purpose."""
    hanging = sorted(set(range(ranks)) - ends.keys())
    problems = [f"rank {rank} {problem}" for rank, end in sorted(ends.items()) if (problem := _problem(end, killed))]
    if hanging:
        problems.append(f"no end of rank {', '.join(map(str, hanging))} within {limit_s:g} s")
    if problems:
        return Outcome("wrong", "; ".join(problems)[:_LONGEST])
    errors = [f"rank {rank}: {_error(end)}" for rank, end in sorted(ends.items()) if end.raised or end.signal]
    if errors:
        return Outcome("loud", "; ".join(errors)[:_LONGEST])
    said = [f"rank {rank}: {end.said}" for rank, end in sorted(ends.items()) if end.said]
    return Outcome("exact", "; ".join(said)[:_LONGEST])


def _problem(end: RankEnd, killed: bool) -> str:
    if end.exact != end.checked:
        return f"has {end.checked - end.exact} of {end.checked} elements wrong"
    if end.late:
        return f"has {end.late} elements that changed after the call"
    if end.status == "TIMEOUT" and not killed:
        return f"hung until its time-out: {end.raised}"
    if not end.known:
        return f"raised {end.raised}"
    return f"died by signal {end.signal}" if end.signal and not killed else ""


def _error(end: RankEnd) -> str:
    return end.status or end.raised or f"killed by signal {end.signal}"
