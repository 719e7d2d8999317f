"""The rank in the job of members that a source knows only by their communicator, their host and their process."""

import re
from collections.abc import Iterable

import msgspec

from c4bench.model.evidence import MemberEvidence

_GUESSED = "no communicator has all ranks, so ranks are numbered in the order of hosts and process ids"
_NOT_ALL = (
    "no communicator has all ranks, and not all processes are known, so that they cannot be numbered in the order of "
    "hosts and process ids: ranks of the job are not known"
)
_Process = tuple[str, int]


def numbered(members: Iterable[MemberEvidence], size: int) -> tuple[list[MemberEvidence], str]:
    """Members with their ranks in the job, which has `size` ranks or more, and why these may be wrong.

    A communicator of all processes numbers them as the launcher does. Without one, all processes together are numbered
    in order, if all are known. Members that cannot be numbered keep the rank -1.
    """
    ones = list(members)
    without = [one for one in ones if one.rank < 0]
    if not without:
        return ones, ""
    processes = {(one.host, one.pid) for one in without if one.comm and one.host and one.pid >= 0}
    ranks = {(one.host, one.pid): one.rank for one in ones if one.rank >= 0 and one.host and one.pid >= 0}
    world, unsure = _world(without, max(len(processes), size)), ""
    if world:
        ranks |= {(one.host, one.pid): one.member for one in without if one.comm == world and one.host}
    elif not ranks and len(processes) >= max(size, 1) and not any(one.local for one in without):
        ranks, unsure = {process: rank for rank, process in enumerate(sorted(processes, key=_launch_order))}, _GUESSED
    found = [one if one.rank >= 0 else _numbered(one, ranks, world) for one in ones]
    if not unsure and not any(one.rank >= 0 for one in found):
        unsure = _NOT_ALL
    return found, unsure


def _world(members: list[MemberEvidence], processes: int) -> str:
    """The largest communicator, if it has all processes."""
    largest = max((one for one in members if not one.local), key=lambda one: one.size, default=None)
    return largest.comm if largest and largest.size >= max(processes, 1) else ""


def _numbered(one: MemberEvidence, ranks: dict[_Process, int], world: str) -> MemberEvidence:
    rank = one.member if world and one.comm == world else ranks.get((one.host, one.pid), -1)
    return msgspec.structs.replace(one, rank=rank)


def _launch_order(process: _Process) -> tuple[list[tuple[int, int, str]], int]:
    """By host, numbers in names by their value, then by process id."""
    parts = re.findall(r"\d+|\D+", process[0])
    return [(1, int(part), "") if part.isascii() and part.isdigit() else (0, 0, part) for part in parts], process[1]
