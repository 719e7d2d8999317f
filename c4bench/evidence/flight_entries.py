"""Entries of a flight recorder dump: each one collective, or one send or receive, as a call.

Source: `FlightRecorder.hpp` and `ProcessGroupNCCL.cpp` of PyTorch, and dumps of PyTorch 2.11 on NCCL. A send or receive
is named `nccl:send 0->1` or `nccl:recv 1<-0`, by ranks of its group. Those in one batch have one `p2p_seq_id` and keep
the state `scheduled`; the entry `nccl:coalesced` after them has the state and the times of them all, and both of their
numbers, but is not marked as `is_p2p`. Collectives that are coalesced end with such an entry too.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from c4bench.evidence.fields import integer, items, kind, real, text, width
from c4bench.evidence.limits import MOST_RANKS, short_name
from c4bench.model.evidence import Call, CallState

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
