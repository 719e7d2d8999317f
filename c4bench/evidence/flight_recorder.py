"""PyTorch's flight recorder: dumps of one rank, as pickle, JSON or printed by Python, formats 2.0 to 2.10.

Source: `torch/csrc/distributed/c10d/FlightRecorder*.hpp`, and dumps of PyTorch 2.8 to 2.14. Gloo's never say that
an operation has started or completed, have no group's ranks, and count one that timed out as completed. So nothing
is taken from `last_completed_collective`, nor the time of the end of a call that is not `completed`, and a `pg_config`
that names no group is not used.

Entries of a flight recorder dump: each one collective, or one send or receive, as a call. Source: `FlightRecorder.hpp`
and `ProcessGroupNCCL.cpp` of PyTorch, and dumps of PyTorch 2.11 on NCCL. A send or receive is named `nccl:send 0->1` or
`nccl:recv 1<-0`, by ranks of its group. Those in one batch have one `p2p_seq_id` and keep the state `scheduled`; the
entry `nccl:coalesced` after them has the state and the times of them all, and both of their numbers, but is not marked
as `is_p2p`. Collectives that are coalesced end with such an entry too.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from c4bench.evidence.fields import integer, items, kind, mapping, rank_in, ranks, real, text, width
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data, short_name
from c4bench.evidence.pickles import plain_data
from c4bench.evidence.printed_python import is_printed, python_data
from c4bench.model.evidence import FLIGHT_RECORDER, Call, CallState, MemberEvidence, Problem, Reading, SourceFile

_GATHERS = ("all_gather", "all_gather_into_tensor")
_COALESCED = "coalesced"
_PEERS = re.compile(r"(?:send|recv) \d{1,9}(?:->|<-)(\d{1,9})$")
_NANO = 1e-9
_STATES = {str(state): state for state in (CallState.STARTED, CallState.COMPLETED)}


class GroupCalls:
    """The calls of one group on one rank: `number` is its own in `pg_status`, `size` how many ranks it shows to have.

    `reached` is the newest collective that sends and receives were called after.
    """

    def __init__(self, number: str) -> None:
        self.number = number
        self.size = 0
        self.reached = -1
        self._calls: dict[int, Call] = {}
        self._transfers: list[Call] = []
        self._batches: dict[int, Call] = {}
        self._newest: tuple[int, int] | None = None  # the numbers of the newest send or receive, if any

    def add(self, entry: Mapping[str, Any]) -> bool:
        """Add an entry; False if it has no number."""
        seq, batch = integer(entry.get("collective_seq_id")), integer(entry.get("p2p_seq_id"))
        if entry.get("is_p2p") is True:
            return self._add_transfer(entry, seq, batch)
        if seq < 0:
            return False
        call = _call(entry, seq)
        if call.kind == _COALESCED:
            if self._newest == (seq, batch):
                self._batches[batch] = call
                return True
            if not self._calls and not self._transfers:  # what it ends is no longer in the dump
                self.reached = seq
                return True
        # Of collectives that are coalesced, the last has the state of them all.
        self._calls[seq] = call
        if call.kind in _GATHERS:
            self.size = max(self.size, _gathered(entry))
        return True

    def _add_transfer(self, entry: Mapping[str, Any], after: int, seq: int) -> bool:
        peer = _PEERS.search(text(entry.get("profiling_name")))
        if seq < 0 or peer is None or int(peer[1]) >= MOST_RANKS:
            return False
        self._newest = after, seq
        self.reached = max(self.reached, after)
        self._transfers.append(msgspec.structs.replace(_call(entry, seq), peer=int(peer[1])))
        return True

    def calls(self) -> tuple[Call, ...]:
        """The collectives, by sequence number."""
        return tuple(self._calls[seq] for seq in sorted(self._calls))

    def transfers(self) -> tuple[Call, ...]:
        """The sends and receives, in the order of calls."""
        found = [self._in_batch(call) for call in self._transfers]
        return tuple(sorted(found, key=lambda call: (call.order, call.seq)))

    def _in_batch(self, call: Call) -> Call:
        batch = self._batches.get(call.seq)
        if batch is None:
            return call
        return msgspec.structs.replace(call, state=batch.state, finished_s=batch.finished_s)


def group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The name of an entry's group, which all ranks know it by, and its number on this rank."""
    number = integer(entry.get("pg_id"))
    names = entry.get("process_group")
    name = text(names[0]) if isinstance(names, list | tuple) and names else ""
    return short_name(name) or str(max(0, number)), str(number) if number >= 0 else name


def _call(entry: Mapping[str, Any], seq: int) -> Call:
    called = entry.get("profiling_name")
    dtype, size_bytes = _put_in(entry)
    state = _state(entry)
    return Call(
        seq,
        _kind(called) if isinstance(called, str) else "",
        state,
        integer(entry.get("record_id")),
        dtype,
        size_bytes,
        max(0, integer(entry.get("time_created_ns"))) * _NANO,
        real(entry.get("duration_ms"), -1000.0) / 1000,
        _finished_s(entry, state),
    )


@lru_cache(maxsize=1024)
def _kind(name: str) -> str:
    return short_name(kind(text(name)))


@lru_cache(maxsize=1024)
def _dtype(name: str) -> tuple[str, int]:
    return short_name(text(name)), width(text(name))


def _put_in(entry: Mapping[str, Any]) -> tuple[str, int]:
    """The type of the first input, and the bytes of all; -1 where shapes are missing."""
    names, shapes = items(entry.get("input_dtypes")), items(entry.get("input_sizes"))
    types = [_dtype(name) if isinstance(name, str) else ("", 1) for name in names] or [("", 1)]
    if len(shapes) == 1:
        return types[0][0], _elements(shapes[0]) * types[0][1]
    sizes = [_elements(shape) * types[min(place, len(types) - 1)][1] for place, shape in enumerate(shapes)]
    return types[0][0], sum(sizes) if sizes else -1


def _finished_s(entry: Mapping[str, Any], state: CallState) -> float:
    """When the watchdog saw that the call had ended; 0 if it has not, or that is not known."""
    return max(0, integer(entry.get("time_discovered_completed_ns"))) * _NANO if state is CallState.COMPLETED else 0.0


def _elements(shape: object) -> int:
    lengths = items(shape)[:16]
    if len(lengths) == 1:
        return max(0, integer(lengths[0]))
    return math.prod(max(0, integer(length)) for length in lengths) % (1 << 63)


def _state(entry: Mapping[str, Any]) -> CallState:
    """The state; gloo's stays `scheduled` when an operation ends, which then is retired."""
    word = text(entry.get("state"))
    if (known := _STATES.get(word)) is not None:
        return known
    if entry.get("retired") is True:
        return CallState.RETIRED
    return CallState.SCHEDULED if word == CallState.SCHEDULED else CallState.UNKNOWN


def _gathered(entry: Mapping[str, Any]) -> int:
    """How many ranks a group has, as what an all-gather puts out shows; 0 where that is not known."""
    put_in, put_out = (
        sum(_elements(shape) for shape in items(entry.get(name))) for name in ("input_sizes", "output_sizes")
    )
    whole = put_in > 0 and put_out % put_in == 0
    return put_out // put_in if whole and put_out // put_in < MOST_RANKS else 0


FORMAT = FLIGHT_RECORDER
_PICKLE = b"\x80"
_HEAD_BYTES = 4096
_KEYS = (b'"pg_config"', b'"pg_status"', b'"comm_lib_version"', b'"collective_seq_id"')
_WORLD = "0"
_DIGITS = 10
_CANNOT = "flight recorder: gloo's dumps have no sends and receives, and do not say which operations have completed"


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is a dump."""
    if head.startswith(_PICKLE):
        return True
    head = _without_lead(head)
    found = head.replace(b"'", b'"') if is_printed(head) else head
    return found.lstrip().startswith(b"{") and any(key in found for key in _KEYS)


def _without_lead(data: bytes) -> bytes:
    """The text of a dump without what a shell or a program wrote before it, as far as that is short."""
    begin = -1 if data.lstrip().startswith(b"{") else data.find(b"\n{", 0, _HEAD_BYTES)
    return data[begin + 1 :]


def read(data: bytes, file: str) -> Reading:
    """The dump in `data`; its rank is in the name of the file. Raises UnreadableError."""
    if data.startswith(_PICKLE):
        dump = plain_data(data)
    else:
        data = _without_lead(data)
        dump = python_data(data) if is_printed(data[:_HEAD_BYTES]) else json_data(data)
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
    known = enqueued == last and not transfers and not any(call.state is CallState.RETIRED for call in calls)
    completed = integer(status.get("last_completed_collective")) if known else -1
    return MemberEvidence(file, FORMAT, name, rank, member, members, len(members) or group.size, calls=calls,
                          transfers=transfers, last_seq=last, completed_seq=completed)  # fmt: skip


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
