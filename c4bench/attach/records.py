"""What the preloaded library records of a process, besides its telemetry file: its queue pairs.

`PID.ring` is a telemetry file (`collective/ring_layout.py`), whose connections belong to one communicator without
members; the NICs at their ends are known by their addresses. `PID.qps` has the same places for queue pairs, with what
only programs of others need: errors, and what they asked for.
"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import msgspec

from c4bench.collective import ring_layout as layout
from c4bench.errors import UsageError

FOLDER = Path("/dev/shm/c4bench-attach")
_MAGIC = b"C4QPS001"
_QP_BYTES = 128
_SIZES = (layout.CONNS, _QP_BYTES, 0, 0, 0, 0, 0, 0, 0)
_FILE_BYTES = layout.HEADER_BYTES + 2 * _QP_BYTES * layout.CONNS
# number, remote number, label asked for, label; timeout asked for, timeout, retries asked for, retries; first status,
# first vendor error, whether it is connected; errors; posted, bytes, of these by reading; completed, bytes; arrived,
# bytes
_QP = Struct("<4I4B3I8Q")
_CONNECTED = 10


class QueuePair(msgspec.Struct, frozen=True):
    """A queue pair of a process. Labels are GRH flow labels, 0 for none; `timeout` and `retries` are verbs' numbers.

    `asked_` is what the program asked for where that may have been overridden. `status` (of ibv_wc_status) and
    `vendor_error` are those of the first completion with an error, 0 for none. `posted`, `completed` and `arrived`
    count messages. One that is no longer `connected` stays until its place is needed.
    """

    number: int
    remote_number: int
    asked_label: int
    label: int
    asked_timeout: int
    timeout: int
    asked_retries: int
    retries: int
    status: int
    vendor_error: int
    connected: bool
    errors: int
    posted: int
    posted_bytes: int
    read_bytes: int
    completed: int
    completed_bytes: int
    arrived: int
    arrived_bytes: int


def processes(folder: Path = FOLDER) -> list[tuple[int, Path]]:
    """(PID, telemetry file) of each process that has records in `folder`; none where there is no such folder."""
    return sorted((int(path.stem), path) for path in folder.glob("*.ring") if path.stem.isdecimal())


def queue_pairs(path: Path) -> tuple[QueuePair, ...]:
    """The queue pairs beside the telemetry file at `path`. Raises UsageError where they cannot be read."""
    beside = path.with_suffix(".qps")
    try:
        descriptor = os.open(beside, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{beside} cannot be read: {error.strerror}") from error
    try:
        return read_queue_pairs(beside, descriptor)
    finally:
        os.close(descriptor)


def read_queue_pairs(path: Path, descriptor: int) -> tuple[QueuePair, ...]:
    """The queue pairs in the file at `path`, open as `descriptor`, by a copy: its owner may cut it meanwhile.

    Raises UsageError for a file of another layout.
    """
    memory = mmap.mmap(-1, _FILE_BYTES)
    content = os.pread(descriptor, _FILE_BYTES + 1, 0)
    if len(content) != _FILE_BYTES or layout.HEADER.unpack_from(content) != (_MAGIC, *_SIZES):
        raise UsageError(f"{path} is not of this version; read it with the c4bench whose library wrote it")
    memory[:] = content
    return tuple(_decoded(memory))


def _decoded(memory: mmap.mmap) -> Iterator[QueuePair]:
    for place in range(layout.CONNS):
        raw = layout.read_slot(memory, layout.HEADER_BYTES + place * 2 * _QP_BYTES, _QP_BYTES)
        if raw is not None and len(raw) == _QP.size:
            numbers = list(_QP.unpack(raw))
            numbers[_CONNECTED] = bool(numbers[_CONNECTED])
            yield QueuePair(*numbers)
