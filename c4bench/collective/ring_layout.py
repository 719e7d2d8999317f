"""The layout of a rank's telemetry file.

The file is shared memory. The rank writes it with plain stores and no system call. Any process may read it at any time,
also when the writer was stopped in the middle of a record or killed.

Every record has two copies, each `generation, length, checksum, payload`. The writer overwrites the older copy with the
next generation, so one complete copy always exists. A writer that stops in the middle leaves a copy with a wrong
checksum, which readers ignore. A reader uses the valid copy with the higher generation. Both copies are invalid only if
the writer writes twice during one read; the reader then reads again.

Each communicator has its own ring of operations, so that other communicators do not overwrite a hung operation.
The header has all sizes, so that files of another build are rejected.
"""

import mmap
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec

from c4bench.model.telemetry import CommRecord
from c4bench.model.window import STATES

# Both ends of a connection sum the times of their messages; the difference is the one-way latency. Two sums can be
# compared when both ends have counted equally many messages. The newest counts may never be equal, when messages are
# always in flight or the job's period is in phase with the telemetry reader's. So each end also keeps its sum as of the
# last multiple of each stride, and a reader takes the roundest count since its last reading. For any stride longer than
# the number of messages between two readings, both ends then report every multiple.
STRIDES = tuple(4**power for power in range(8))
_LEVELS = tuple(min((bits - 1) // 2, len(STRIDES) - 1) for bits in range(65))  # by the length of a difference
_MASK = (1 << 64) - 1

MAGIC = b"C4RING07"
HEADER = struct.Struct("<8s9I")
HEADER_BYTES = 4096
_COPY = struct.Struct("<QII")
_GENERATION_BYTES = 8
_CHECKSUM_MASK = 0xFFFFFFFF

PROCESS_BYTES = 512
COMMS = 64
COMM_BYTES = 128 << 10
OPS_PER_COMM = 64
OP_BYTES = 256
CONNS = 1024
CONN_NAME_BYTES = 256
CONN_BYTES = 192
ARRIVAL_BYTES = 96

# 64-bit numbers are native, `l` and `L`: the same bytes as `<q` and `<Q`, which CPython packs more slowly.
# seq, size_bytes, entered_ns, started_ns, finished_ns, names. A bit for each rank that is waited for follows, up to the
# last such rank: usually there is none, and bytes that are not written cost no checksum.
OP = struct.Struct("@LLlll48s")
NAMES = struct.Struct("16s16s16s")
# messages, size_bytes; ns spent in credit, data and transfer, and the share of the NIC's virtual time;
# last_progress_ns, outstanding, owed, source_port, state, since_ns. The tally of posted messages follows.
CONN = struct.Struct(f"@LLlllllIIIIl{1 + len(STRIDES)}L")
# The number of messages, and a sum for each stride. Records of arrivals have nothing else.
TALLY = struct.Struct(f"@{1 + len(STRIDES)}L")
MAX_RANKS = 1024
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}

SIZES = (PROCESS_BYTES, COMMS, COMM_BYTES, OPS_PER_COMM, OP_BYTES, CONNS, CONN_NAME_BYTES, CONN_BYTES, ARRIVAL_BYTES)
COMMS_AT = HEADER_BYTES + 2 * PROCESS_BYTES
OPS_AT = COMMS_AT + 2 * COMM_BYTES * COMMS
CONN_NAMES_AT = OPS_AT + 2 * OP_BYTES * OPS_PER_COMM * COMMS
CONNS_AT = CONN_NAMES_AT + 2 * CONN_NAME_BYTES * CONNS
ARRIVAL_NAMES_AT = CONNS_AT + 2 * CONN_BYTES * CONNS
ARRIVALS_AT = ARRIVAL_NAMES_AT + 2 * CONN_NAME_BYTES * CONNS
FILE_BYTES = ARRIVALS_AT + 2 * ARRIVAL_BYTES * CONNS


class Slot:
    """The writer's handle on one record: two copies of `size` bytes each at `offset`."""

    __slots__ = ("_generation", "_memory", "_offset", "_size")

    def __init__(self, memory: memoryview, offset: int, size: int) -> None:
        self._memory = memory
        self._offset = offset
        self._size = size
        # The slot may have been used before; its old value must not look newer than the next write.
        self._generation = max(_COPY.unpack_from(memory, at)[0] for at in (offset, offset + size))

    def write(self, payload: bytes) -> None:
        """Replace the record. The other copy keeps the previous value. Raises ValueError if it does not fit."""
        length = len(payload)
        if _COPY.size + length > self._size:
            raise ValueError(f"a record of {length} bytes does not fit {self._size - _COPY.size}")
        generation = self._generation = self._generation + 1
        at = self._offset + (generation & 1) * self._size
        body = at + _COPY.size
        self._memory[body : body + length] = payload
        _COPY.pack_into(self._memory, at, generation, length, zlib.crc32(payload, generation & _CHECKSUM_MASK))


def read_slot(memory: mmap.mmap, offset: int, size: int) -> bytes | None:
    """The newest complete value at `offset`, or None."""
    first, second = generations(memory, offset, size)
    newer, older = (offset, offset + size) if first > second else (offset + size, offset)
    return next((value for value in read_copies(memory, (newer, older), size) if value is not None), None)


def generations(memory: mmap.mmap, base: int, size: int, places: int = 1) -> tuple[int, ...]:
    """The generations of both copies of each record from `base` on, read at once; 0 for a copy never written."""
    return _generations(size, places).unpack_from(memory, base)


@lru_cache(maxsize=256)
def _generations(size: int, places: int) -> struct.Struct:
    return struct.Struct("<" + f"Q{size - _GENERATION_BYTES}x" * 2 * places)


@lru_cache(maxsize=256)
def names(kind: str, algorithm: str, dtype: str) -> bytes:
    """An operation's names, packed for its record."""
    return NAMES.pack(kind.encode(), algorithm.encode(), dtype.encode())


@lru_cache(maxsize=256)
def names_in(raw: bytes) -> tuple[str, str, str]:
    """Kind, algorithm and dtype, unpacked from an operation's record."""
    kind, algorithm, dtype = (name.rstrip(b"\0").decode() for name in NAMES.unpack(raw))
    return kind, algorithm, dtype


def operations_at(comm: int) -> int:
    """The offset of a communicator's operations."""
    return OPS_AT + comm * OPS_PER_COMM * 2 * OP_BYTES


def read_copies(memory: mmap.mmap, offsets: Iterable[int], size: int) -> list[bytes | None]:
    """The values of the copies at these offsets, None for a copy never written or incomplete."""
    values: list[bytes | None] = []
    head, longest, unpack, crc32 = _COPY.size, size - _COPY.size, _COPY.unpack_from, zlib.crc32
    for at in offsets:
        generation, length, checksum = unpack(memory, at)
        if generation and length <= longest:
            payload = memory[at + head : at + head + length]
            values.append(payload if crc32(payload, generation & _CHECKSUM_MASK) == checksum else None)
        else:
            values.append(None)
    return values


class Owner(msgspec.Struct, frozen=True):
    """The process a file belongs to."""

    job: str
    rank: int
    pid: int


class CommEntry(msgspec.Struct, frozen=True):
    """A communicator, and the process's rank in it."""

    rank: int
    record: CommRecord


class ConnName(msgspec.Struct, frozen=True):
    """The constant part of a QP's record, at either end. `comm` is the communicator's index in the file.

    `source` and `destination` are NICs, in the direction of the data; `peer` is the rank at the other end, `qp` the
    sending end's QP.
    """

    comm: int
    peer: int
    source: str
    destination: str
    qp: int


class LatencyMark(NamedTuple):
    """The times of the first `messages` messages sum to `sum_ns`, in ns modulo 2^64."""

    messages: int
    sum_ns: int


@dataclass(slots=True)
class LatencySums:
    """Counts messages and sums their times; `sums` has a sum in ns, modulo 2^64, for each of `STRIDES`."""

    count: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * len(STRIDES))

    def add(self, now_ns: int) -> None:
        """Count one message."""
        self.count += 1
        total = self.sums[0] = (self.sums[0] + now_ns) & _MASK
        level = 1
        while level < len(STRIDES) and not self.count % STRIDES[level]:
            self.sums[level] = total
            level += 1


def roundest(before: int, count: int, sums: Sequence[int]) -> LatencyMark:
    """Among the counts after `before` up to `count`, the last multiple of the longest stride that has one."""
    # The highest bit in which the two differ is the largest power of two that has a multiple among them.
    level = _LEVELS[(before ^ count).bit_length()]
    return LatencyMark(count - count % STRIDES[level], sums[level])
