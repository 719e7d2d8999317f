"""How a rank's telemetry lies in its file.

The file is shared memory: the rank writes it with plain stores and no system call, and anyone may read it at any
moment, also when the writer has been stopped half-way through a record or killed.

Every record is kept twice. Each copy is `generation, length, checksum, payload`; the writer fills the copy that is
*not* the newest, with the next generation. So at every instant at least one copy is complete and untouched: a writer
frozen in the middle leaves a copy whose checksum does not fit, which is ignored, and the previous value beside it. A
reader takes the valid copy with the higher generation. Only a writer that overtakes the reader twice within one
reading can spoil both copies; it is then running, and the reader reads again.

Operations have a ring per communicator, so that a hung operation is not overwritten by other communicators' progress.
Fixed sizes are in the header, so files of another build are refused rather than misread.
"""

import mmap
import struct
import zlib
from collections.abc import Iterable
from functools import lru_cache

from c4bench.collective.latency_sums import STRIDES

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

# The 64-bit numbers are the machine's own, `l` and `L`: the same bytes as `<q` and `<Q`, which CPython takes longer to
# pack.
# seq, size_bytes, entered_ns, started_ns, finished_ns, names. Behind it a bit for each rank that is awaited, up to the
# last of them: mostly there is none, and what is not written costs no checksum.
OP = struct.Struct("@LLlll48s")
_NAMES = struct.Struct("16s16s16s")
# messages, size_bytes; nanoseconds of credit, data and transfer, and the share of the NIC's; last_progress_ns,
# outstanding, owed, source_port, state, since_ns. Behind it the tally of what was posted.
CONN = struct.Struct(f"@LLlllllIIIIl{1 + len(STRIDES)}L")
# How many, and a sum for each stride. It is all that is recorded of arrivals.
TALLY = struct.Struct(f"@{1 + len(STRIDES)}L")
MAX_RANKS = 1024
STATES = ("idle", "credit", "data", "transfer")
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
        # A place may have been used before; its old value must not look newer than what is written now.
        self._generation = max(_COPY.unpack_from(memory, at)[0] for at in (offset, offset + size))

    def write(self, payload: bytes) -> None:
        """Replace the record. The other copy, which holds the last value, stays as it is."""
        length = len(payload)
        if _COPY.size + length > self._size:
            raise ValueError(f"a record of {length} bytes does not fit {self._size - _COPY.size}")
        generation = self._generation = self._generation + 1
        at = self._offset + (generation & 1) * self._size
        body = at + _COPY.size
        self._memory[body : body + length] = payload
        _COPY.pack_into(self._memory, at, generation, length, zlib.crc32(payload, generation & _CHECKSUM_MASK))


def read_slot(memory: mmap.mmap, offset: int, size: int) -> bytes | None:
    """The newest complete value at `offset`, or None where there is none."""
    first, second = generations(memory, offset, size)
    newer, older = (offset, offset + size) if first > second else (offset + size, offset)
    return next((value for value in read_copies(memory, (newer, older), size) if value is not None), None)


def generations(memory: mmap.mmap, base: int, size: int, places: int = 1) -> tuple[int, ...]:
    """The generations of both copies of each place from `base` on, at one go: 0 for one never written.

    They tell whether anything is new.
    """
    return _generations(size, places).unpack_from(memory, base)


@lru_cache(maxsize=256)
def _generations(size: int, places: int) -> struct.Struct:
    return struct.Struct("<" + f"Q{size - _GENERATION_BYTES}x" * 2 * places)


@lru_cache(maxsize=256)
def names(kind: str, algorithm: str, dtype: str) -> bytes:
    """An operation's names as they stand in its record."""
    return _NAMES.pack(kind.encode(), algorithm.encode(), dtype.encode())


@lru_cache(maxsize=256)
def names_in(raw: bytes) -> tuple[str, str, str]:
    """Kind, algorithm and dtype from how they stand in an operation's record."""
    kind, algorithm, dtype = (name.rstrip(b"\0").decode() for name in _NAMES.unpack(raw))
    return kind, algorithm, dtype


def operations_at(comm: int) -> int:
    """Where a communicator's operations begin."""
    return OPS_AT + comm * OPS_PER_COMM * 2 * OP_BYTES


def read_copies(memory: mmap.mmap, offsets: Iterable[int], size: int) -> list[bytes | None]:
    """The values of the copies at these offsets, None for one never written or not complete."""
    found: list[bytes | None] = []
    head, longest = _COPY.size, size - _COPY.size
    for at in offsets:
        generation, length, checksum = _COPY.unpack_from(memory, at)
        payload = memory[at + head : at + head + length] if generation and length <= longest else None
        whole = payload is not None and zlib.crc32(payload, generation & _CHECKSUM_MASK) == checksum
        found.append(payload if whole else None)
    return found
