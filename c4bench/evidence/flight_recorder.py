"""PyTorch's flight recorder: dumps of one rank, as pickle or JSON, formats 2.0 to 2.10.

Source: `torch/csrc/distributed/c10d/FlightRecorder*.hpp`, and dumps of PyTorch 2.8 to 2.14. Gloo's never say that
an operation has started or completed, have no group's ranks, and count one that timed out as completed. So nothing
is taken from `last_completed_collective`, nor the time of the end of a call that is not `completed`, and a `pg_config`
that names no group is not used.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from c4bench.evidence.fields import integer, items, kind, mapping, objects, ranks, real, text, width
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data, place_of
from c4bench.evidence.pickles import plain_data
from c4bench.model.evidence import Call, CallState, MemberEvidence, Problem, Reading, SourceFile

FORMAT = "flight recorder"
_PICKLE = b"\x80"
_KEYS = (b'"pg_config"', b'"pg_status"', b'"comm_lib_version"', b'"collective_seq_id"')
_WORLD = "0"
_CANNOT = "flight recorder: send and receive are not judged; gloo's dumps do not say which operations have completed"
_GATHERS = ("all_gather", "all_gather_into_tensor")
_NANO = 1e-9


class _Group(NamedTuple):
    """A communicator of the dump: its number in `pg_status`, and its calls."""

    number: str
    calls: list[Call]
    size: int


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a dump."""
    return head.startswith(_PICKLE) or (head.lstrip().startswith(b"{") and any(key in head for key in _KEYS))


def read(data: bytes, file: str) -> Reading:
    """The dump in `data`; its rank is the last number in the name of the file. Raises UnreadableError."""
    dump = plain_data(data) if data.startswith(_PICKLE) else json_data(data)
    if not isinstance(dump, dict) or not ({"entries", "pg_config", "pg_status"} & dump.keys()):
        raise UnreadableError("it is no flight recorder dump: it has neither entries nor pg_config")
    version = place_of(text(dump.get("version"))) or "unknown"
    if not version.startswith("2."):
        raise UnreadableError(f"flight recorder format {version} is not known; known are 2.0 to 2.10", "version")
    rank = _rank(file)
    if rank < 0:
        raise UnreadableError("which rank it is of is not known; end its name with the rank, such as trace_rank_3")
    groups, problems = _groups(dump, file)
    members = tuple(_member(dump, file, rank, name, group) for name, group in groups.items())
    sizes = (len(member.members) or member.size for member in members if member.comm == _WORLD)
    world = max(rank + 1, len(_config_ranks(mapping(dump.get("pg_config")), _WORLD)), *sizes)
    return Reading(members, (SourceFile(file, FORMAT, version, (rank,)),), tuple(problems), (_CANNOT,), world)


def _rank(file: str) -> int:
    numbers = re.findall(r"\d+", PurePath(file).name.partition(".")[0])
    return integer(numbers[-1]) if numbers and integer(numbers[-1]) < MOST_RANKS else -1


def _groups(dump: Mapping[str, Any], file: str) -> tuple[dict[str, _Group], list[Problem]]:
    """The calls by communicator; entries that tell nothing are problems."""
    groups: dict[str, _Group] = {}
    bad = 0
    for entry in items(dump.get("entries")):
        if not isinstance(entry, dict) or integer(entry.get("collective_seq_id")) < 0:
            bad += 1
            continue
        if entry.get("is_p2p") is True:
            continue
        name, number = _names(entry)
        call = _call(entry)
        group = groups.setdefault(name, _Group(number, [], 0))
        group.calls.append(call)
        groups[name] = group._replace(size=max(group.size, _size(entry, call)))
    for number in mapping(dump.get("pg_status")):
        if not any(group.number == number for group in groups.values()):
            groups.setdefault(str(number), _Group(str(number), [], 0))
    return groups, [Problem(file, f"{bad} entries without a sequence number are not used", "entries")] if bad else []


def _names(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The name of an entry's group, which all ranks know it by, and its number on this rank."""
    number = integer(entry.get("pg_id"))
    names = items(entry.get("process_group"))
    name = text(names[0]) if names else ""
    return place_of(name) or str(max(0, number)), str(number) if number >= 0 else name


def _call(entry: Mapping[str, Any]) -> Call:
    dtypes, shapes = items(entry.get("input_dtypes")), items(entry.get("input_sizes"))
    dtype = place_of(text(dtypes[0])) if dtypes else ""
    widths = [width(text(one)) for one in dtypes] or [1]
    sizes = [_elements(shape) * widths[min(place, len(widths) - 1)] for place, shape in enumerate(shapes)]
    state = _state(entry)
    return Call(
        seq=integer(entry.get("collective_seq_id")),
        kind=place_of(kind(text(entry.get("profiling_name")))),
        state=state,
        order=integer(entry.get("record_id")),
        dtype=dtype,
        size_bytes=sum(sizes) if sizes else -1,
        created_s=max(0, integer(entry.get("time_created_ns"))) * _NANO,
        duration_s=real(entry.get("duration_ms"), -1000.0) / 1000,
        finished_s=_finished_s(entry, state),
    )


def _finished_s(entry: Mapping[str, Any], state: CallState) -> float:
    """When the watchdog saw that the call had ended; 0 if it has not, or that is not known."""
    return max(0, integer(entry.get("time_discovered_completed_ns"))) * _NANO if state is CallState.COMPLETED else 0.0


def _elements(shape: object) -> int:
    lengths = [max(0, integer(length)) for length in items(shape)[:16]]
    return math.prod(lengths) % (1 << 63)


def _state(entry: Mapping[str, Any]) -> CallState:
    """The state; gloo's stays `scheduled` when an operation ends, which then is retired."""
    word = text(entry.get("state"))
    if word in {CallState.STARTED, CallState.COMPLETED}:
        return CallState(word)
    if entry.get("retired") is True:
        return CallState.RETIRED
    return CallState.SCHEDULED if word == CallState.SCHEDULED else CallState.UNKNOWN


def _size(entry: Mapping[str, Any], call: Call) -> int:
    """How many ranks a group has, as what an all-gather puts out shows; 0 where that is not known."""
    if call.kind not in _GATHERS:
        return 0
    put_in, put_out = (
        sum(_elements(shape) for shape in items(entry.get(name))) for name in ("input_sizes", "output_sizes")
    )
    whole = put_in > 0 and put_out % put_in == 0
    return put_out // put_in if whole and put_out // put_in < MOST_RANKS else 0


def _member(dump: Mapping[str, Any], file: str, rank: int, name: str, group: _Group) -> MemberEvidence:
    members = _config_ranks(mapping(dump.get("pg_config")), name)
    member = _place(rank, members)
    if member < 0:
        members = ()
    status = mapping(mapping(dump.get("pg_status")).get(group.number))
    calls = _in_order(group.calls)
    last = max((call.seq for call in calls), default=integer(status.get("last_enqueued_collective")))
    return MemberEvidence(file, FORMAT, name, rank, member, members, len(members) or group.size, calls=calls,
                          last_seq=last)  # fmt: skip


def _place(rank: int, members: tuple[int, ...]) -> int:
    """The place of a rank in a group, -1 if it has none; at once where the group has all ranks in order."""
    if members[rank : rank + 1] == (rank,):
        return rank
    return members.index(rank) if rank in members else -1


def _config_ranks(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The ranks of a group, by its own name or by that under which it is listed."""
    listed = [config[name]] if name in config else []
    named = [one for one in objects(list(config.values())) if text(one.get("name")) == name]
    return next((found for one in listed + named if (found := ranks(mapping(one).get("ranks")))), ())


def _in_order(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Calls by sequence number, each once: of entries that are coalesced, the last."""
    return tuple(sorted({call.seq: call for call in calls}.values(), key=lambda call: call.seq))
