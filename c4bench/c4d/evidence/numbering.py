"""The rank in the job of members that a source knows only by their communicator, their host and their process."""

import re
from collections.abc import Iterable

import msgspec

from c4bench.model.evidence import MemberEvidence

_GUESSED = "no communicator has all ranks, so ranks are numbered in the order of hosts and process ids"
_Process = tuple[str, int]


def numbered(members: Iterable[MemberEvidence], size: int) -> tuple[list[MemberEvidence], str]:
    """Members with their ranks in the job, which has `size` ranks or more, and why these may be wrong.

    A communicator of all processes numbers them as the launcher does. Members that cannot be numbered are left out,
    except those that are reported as gone.
    """
    ones = list(members)
    without = [one for one in ones if one.rank < 0]
    if not without:
        return ones, ""
    processes = {(one.host, one.pid) for one in without if one.host}
    world = _world(without, max(len(processes), size))
    if world:
        ranks = {(one.host, one.pid): one.member for one in without if one.comm == world and one.host}
    else:
        ranks = {process: rank for rank, process in enumerate(sorted(processes, key=_launch_order))}
    found = [one if one.rank >= 0 else _numbered(one, ranks, world) for one in ones]
    return [one for one in found if one.rank >= 0 or one.status], "" if world else _GUESSED


def _world(members: list[MemberEvidence], processes: int) -> str:
    """The largest communicator, if it has all processes."""
    largest = max(members, key=lambda one: one.size)
    return largest.comm if largest.size >= max(processes, 1) else ""


def _numbered(one: MemberEvidence, ranks: dict[_Process, int], world: str) -> MemberEvidence:
    rank = one.member if one.comm == world else ranks.get((one.host, one.pid), -1)
    return msgspec.structs.replace(one, rank=rank)


def _launch_order(process: _Process) -> tuple[list[tuple[int, int, str]], int]:
    """By host, numbers in names by their value, then by process id."""
    parts = re.findall(r"\d+|\D+", process[0])
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts], process[1]
