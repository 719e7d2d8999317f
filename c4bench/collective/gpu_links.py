"""The links between the GPUs of a host, which stand for NVLink: when what is sent arrives, and what faults do to them.

Copying memory takes no time in a virtual-time lab, so the time that a link would take is computed: each GPU's sending
and receiving end carries one message after another at its rate. The ends are a small file that all ranks of a host
share, with a record for each GPU. A fault is a value there, which ranks read at each message.

Nothing locks the file: in virtual time no other process runs while one computes, and a lock would let a frozen rank
stop its host. In real time two ranks may send to one GPU at once, and that GPU then receives one message too fast.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Literal, NamedTuple

from c4bench.errors import UsageError
from c4bench.model.fabric import Inside

GpuKnob = Literal["send_fraction", "receive_fraction", "down"]

GPUS = 64
_MAGIC = b"c4gpul01"
_VALUE = struct.Struct("=d")
_NUMBER = struct.Struct("=q")
# Of each GPU: until when its sending and its receiving end are busy (ns, the host's monotonic clock), and the knobs.
_BUSY = ("send", "receive")
_KNOBS: tuple[GpuKnob, ...] = ("send_fraction", "receive_fraction", "down")
_RECORD = 8 * (len(_BUSY) + len(_KNOBS))
_BYTES = len(_MAGIC) + GPUS * _RECORD


def _at(gpu: int, field: int) -> int:
    return len(_MAGIC) + gpu * _RECORD + 8 * field


class GpuPair(NamedTuple):
    """The numbers of the GPUs at the ends of a link."""

    source: int
    destination: int


class GpuLinks:
    """All links of a host as its ranks see them. A fraction of 0 stands for the whole rate, `down` for 0 is up."""

    def __init__(self, path: Path, inside: Inside) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _BYTES)
            self._memory = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)
        self._memory[: len(_MAGIC)] = _MAGIC
        self._ns_per_byte = 8e9 / inside.rate_bps if inside.rate_bps else 0.0
        self._delay_ns = round(inside.delay_s * 1e9)

    def arrives_ns(self, pair: GpuPair, size_bytes: int, now_ns: int) -> int | None:
        """When a message that is sent now arrives, which occupies both ends until then; None while a link is down."""
        if self._knob(pair.source, "down") or self._knob(pair.destination, "down"):
            return None
        leaves_ns = self._carry(pair.source, "send", size_bytes, now_ns)
        first_ns = leaves_ns - self._lasts_ns(pair.source, "send", size_bytes)
        return max(leaves_ns, self._carry(pair.destination, "receive", size_bytes, first_ns)) + self._delay_ns

    def _carry(self, gpu: int, end: Literal["send", "receive"], size_bytes: int, from_ns: int) -> int:
        """Until when an end is busy with a message, after those before it."""
        at = _at(gpu, _BUSY.index(end))
        busy_ns: int = _NUMBER.unpack_from(self._memory, at)[0]
        until_ns = max(from_ns, busy_ns) + self._lasts_ns(gpu, end, size_bytes)
        _NUMBER.pack_into(self._memory, at, until_ns)
        return until_ns

    def _lasts_ns(self, gpu: int, end: Literal["send", "receive"], size_bytes: int) -> int:
        fraction = self._knob(gpu, "send_fraction" if end == "send" else "receive_fraction") or 1.0
        return round(size_bytes * self._ns_per_byte / fraction)

    def _knob(self, gpu: int, knob: GpuKnob) -> float:
        value: float = _VALUE.unpack_from(self._memory, _at(gpu, len(_BUSY) + _KNOBS.index(knob)))[0]
        return value


class GpuLinksFile:
    """The same file as whoever injects faults sees it: read and set by system calls, as with `ControlsFile`.

    `path` is what errors name. Raises UsageError if the file is none of theirs, or a GPU has no place in it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path
        if os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            raise UsageError(f"{path}: not the links of GPUs")

    def read(self, gpu: int, knob: GpuKnob) -> float:
        """The value of a knob."""
        data = os.pread(self._descriptor, _VALUE.size, self._place(gpu, knob))
        value: float = _VALUE.unpack(data)[0] if len(data) == _VALUE.size else -1.0
        if not 0.0 <= value <= 1.0:
            raise UsageError(f"{self._path}: {knob} is {value:g}, which nobody sets; start the job again")
        return value

    def set(self, gpu: int, knob: GpuKnob, value: float) -> None:
        """Set a knob."""
        os.pwrite(self._descriptor, _VALUE.pack(value), self._place(gpu, knob))

    @staticmethod
    def _place(gpu: int, knob: GpuKnob) -> int:
        if not 0 <= gpu < GPUS:
            raise UsageError(f"GPU {gpu}: give a number from 0 to {GPUS - 1}")
        return _at(gpu, len(_BUSY) + _KNOBS.index(knob))
