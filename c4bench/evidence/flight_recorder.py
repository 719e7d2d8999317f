"""PyTorch's flight recorder: dumps of one rank, as pickle or JSON, formats 2.0 to 2.10.

Source: `torch/csrc/distributed/c10d/FlightRecorder*.hpp`, and dumps of PyTorch 2.8 to 2.14. Gloo's never say that
an operation has started or completed, have no group's ranks, and count one that timed out as completed. So nothing
is taken from `last_completed_collective`, nor the time of the end of a call that is not `completed`, and a `pg_config`
that names no group is not used.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from c4bench.evidence.fields import integer, items, mapping, rank_in, ranks, text
from c4bench.evidence.flight_entries import GroupCalls, group_of
from c4bench.evidence.limits import UnreadableError, json_data, short_name
from c4bench.evidence.pickles import plain_data
from c4bench.model.evidence import FLIGHT_RECORDER, MemberEvidence, Problem, Reading, SourceFile

FORMAT = FLIGHT_RECORDER
_PICKLE = b"\x80"
_KEYS = (b'"pg_config"', b'"pg_status"', b'"comm_lib_version"', b'"collective_seq_id"')
_WORLD = "0"
_DIGITS = 10
_CANNOT = "flight recorder: gloo's dumps have no sends and receives, and do not say which operations have completed"


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a dump."""
    return head.startswith(_PICKLE) or (head.lstrip().startswith(b"{") and any(key in head for key in _KEYS))


def read(data: bytes, file: str) -> Reading:
    """The dump in `data`; its rank is in the name of the file. Raises UnreadableError."""
    dump = plain_data(data) if data.startswith(_PICKLE) else json_data(data)
    if not isinstance(dump, dict) or not ({"entries", "pg_config", "pg_status"} & dump.keys()):
        raise UnreadableError("it is no flight recorder dump: it has neither entries nor pg_config")
    version = short_name(text(dump.get("version"))) or "unknown"
    if not version.startswith("2."):
        raise UnreadableError(f"flight recorder format {version} is not known; known are 2.0 to 2.10", "version")
    rank = rank_in(file)
    if rank < 0:
        raise UnreadableError("which rank it is of is not known; end its name with the rank, such as trace_rank_3")
    groups, problems = _groups(dump, file, rank)
    members = tuple(_member(dump, file, rank, name, group) for name, group in groups.items())
    sizes = (len(member.members) or member.size for member in members if member.comm == _WORLD)
    world = max(len(_config_ranks(mapping(dump.get("pg_config")), _WORLD)), *sizes, 0)
    return Reading(members, (SourceFile(file, FORMAT, version, (rank,)),), tuple(problems), (_CANNOT,), world)


def _groups(dump: Mapping[str, Any], file: str, rank: int) -> tuple[dict[str, GroupCalls], list[Problem]]:
    """The calls by communicator, also of those without any; entries that tell nothing are problems."""
    groups: dict[str, GroupCalls] = {}
    bad = 0
    for entry in items(dump.get("entries")):
        if not isinstance(entry, dict):
            bad += 1
            continue
        name, number = group_of(entry)
        group = groups.get(name) or GroupCalls(number)
        if group.add(entry):
            groups[name] = group
        else:
            bad += 1
    named = _named(mapping(dump.get("pg_config")), mapping(dump.get("pg_status")), groups)
    numbers = {group.number for group in groups.values()}
    lost = [str(number) for number in mapping(dump.get("pg_status")) if number not in numbers]
    # The status names a group once it has been called. Where the calls of one are lost, which one is not known.
    unused = () if lost or "pg_status" not in dump else _configured(mapping(dump.get("pg_config")), rank)
    for number in lost:
        if name := named.get(number, ""):
            groups.setdefault(name, GroupCalls(number))
    for name in unused:
        groups.setdefault(name, GroupCalls(""))
    return groups, [Problem(file, f"{bad} entries without a sequence number are not used", "entries")] if bad else []


def _named(config: Mapping[str, Any], status: Mapping[str, Any], groups: Mapping[str, GroupCalls]) -> dict[str, str]:
    """The names of groups by their numbers in the status, which count a rank's own groups as they were made.

    Names are numbers too, counted over the groups of all ranks. Without a list of groups only that of all ranks, which
    is made first, is known by its number.
    """
    names = [str(name) for name in config if name]
    if not names:
        return {_WORLD: _WORLD}
    if len(names) != len(status) or not all(word.isdecimal() and len(word) < _DIGITS for word in (*names, *status)):
        return {}
    found = dict(zip(sorted(map(str, status), key=int), sorted(names, key=int), strict=True))
    known = all(found.get(group.number) == name for name, group in groups.items())
    return found if known else {}


def _configured(config: Mapping[str, Any], rank: int) -> Iterator[str]:
    """The names of the groups that a rank is in."""
    for name, one in config.items():
        if _place(rank, ranks(mapping(one).get("ranks"))) >= 0:
            yield short_name(str(name))


def _member(dump: Mapping[str, Any], file: str, rank: int, name: str, group: GroupCalls) -> MemberEvidence:
    members = _config_ranks(mapping(dump.get("pg_config")), name)
    member = _place(rank, members)
    if member < 0:
        members = ()
    status = mapping(mapping(dump.get("pg_status")).get(group.number))
    calls, transfers = group.calls(), group.transfers()
    # The number in the status may be that of a send or receive.
    enqueued = group.reached if transfers else integer(status.get("last_enqueued_collective"))
    last = max(group.reached, *(call.seq for call in calls[-1:])) if calls else enqueued
    return MemberEvidence(file, FORMAT, name, rank, member, members, len(members) or group.size, calls=calls,
                          transfers=transfers, last_seq=last)  # fmt: skip


def _place(rank: int, members: tuple[int, ...]) -> int:
    """The place of a rank in a group, -1 if it has none; at once where the group has all ranks in order."""
    if members[rank : rank + 1] == (rank,):
        return rank
    return members.index(rank) if rank in members else -1


def _config_ranks(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The ranks of a group, by its own name or by that under which it is listed."""
    listed = (config[name],) if name in config else ()
    named = (one for one in config.values() if text(mapping(one).get("name")) == name)
    return next((found for one in chain(listed, named) if (found := ranks(mapping(one).get("ranks")))), ())
