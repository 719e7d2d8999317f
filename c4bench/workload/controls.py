"""Knobs of a running rank for process faults, in a small shared file.

Computing is modelled as sleeping, since instructions take no time in a virtual-time lab. A slow rank sleeps longer by a
factor, which is read from memory at each step without a system call. The sleep stands for a kernel on the rank's
accelerator: a fault makes it longer, keeps it from returning, or ends it with an error. Orders, such as to hang or
exit, are applied by the rank itself at its next step or operation.
"""

import ctypes
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Literal, Self

from c4bench.errors import UnhealthyError, UsageError

Knob = Literal["compute_factor", "hang_until_s", "exit_code", "stuck_until_s", "device_error"]

_MAGIC = b"c4knobs3"
_VALUE = struct.Struct("=d")
_NEUTRAL: dict[Knob, float] = {
    "compute_factor": 1.0,
    "hang_until_s": 0.0,
    "exit_code": 0.0,
    "stuck_until_s": 0.0,
    "device_error": 0.0,
}
_OFFSETS: dict[Knob, int] = {knob: len(_MAGIC) + i * _VALUE.size for i, knob in enumerate(_NEUTRAL)}
_BYTES = len(_MAGIC) + len(_NEUTRAL) * _VALUE.size
# More than any factor, code or time in seconds.
_MOST = 1e12
# A hang ends this soon after it is cancelled.
_SLICE_US = 10_000
# Longer than any hang, so that no other thread gets the interpreter's lock between two slices.
_NEVER_S = 1e6


class DeviceError(UnhealthyError):
    """A call to the accelerator failed; its memory cannot be trusted any more."""


class Controls:
    """The knobs of one rank.

    `compute_factor` multiplies its computing time; 1.0 is normal. Until `hang_until_s` (the host's monotonic clock) it
    does nothing and keeps the interpreter's lock. An `exit_code` other than 0 ends it with that code. Until
    `stuck_until_s` its computing does not return, with the lock free; a `device_error` other than 0 makes it fail.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create the file with every knob neutral."""
        path.write_bytes(_MAGIC + b"".join(_VALUE.pack(value) for value in _NEUTRAL.values()))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a rank's file, by the rank itself. Raises UsageError if it is not one."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                memory = mmap.mmap(descriptor, _BYTES)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: no such rank is running here ({error})") from None
        if memory[: len(_MAGIC)] != _MAGIC:
            raise UsageError(f"{path}: not a rank's controls")
        return cls(memory)

    def read(self, knob: Knob) -> float:
        """The value of a knob."""
        value: float = _VALUE.unpack_from(self._memory, _OFFSETS[knob])[0]
        return value

    def set(self, knob: Knob, value: float) -> None:
        """Set a knob."""
        _VALUE.pack_into(self._memory, _OFFSETS[knob], value)

    def compute(self, duration_s: float) -> None:
        """Compute for `duration_s` times the factor, then apply orders.

        Raises DeviceError when the accelerator reports an error.
        """
        time.sleep(duration_s * self.read("compute_factor"))
        while self._before("stuck_until_s"):
            time.sleep(_SLICE_US / 1e6)
        if number := int(self.read("device_error")):
            raise DeviceError(f"the accelerator reports error {number}; take it out of use and see its driver's log")
        self.apply_orders()

    def apply_orders(self) -> None:
        """Hang or exit if ordered; returns when a hang is over. Called by the rank itself."""
        if code := int(self.read("exit_code")):
            # Like a library that calls exit: without an exception that the communicator could handle.
            os._exit(code)
        if self._before("hang_until_s"):
            self._hang()

    def _before(self, knob: Knob) -> bool:
        """Whether the knob's time is in the future. Without a time the clock is not read, since that takes time."""
        until_s = self.read(knob)
        return bool(until_s) and time.monotonic() < until_s

    def _hang(self) -> None:
        """Hang in slices, so that it can be cancelled; it ends by itself if the injector is gone."""
        sleep = ctypes.PyDLL(None).usleep  # unlike CDLL, PyDLL keeps the interpreter's lock
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(_NEVER_S)
        try:
            while self._before("hang_until_s"):
                sleep(_SLICE_US)
        finally:
            sys.setswitchinterval(usual_s)


class ControlsFile:
    """The knobs of another user's rank, in its open file; `path` is what errors name.

    They are read and set by system calls, since whoever maps a file is killed when its owner cuts it. Raises UsageError
    if it is no rank's file, or a knob has a value that nobody sets.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path
        if len(os.pread(descriptor, _BYTES, 0)) != _BYTES or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            raise UsageError(f"{path}: not a rank's controls")

    def read(self, knob: Knob) -> float:
        """The value of a knob."""
        data = os.pread(self._descriptor, _VALUE.size, _OFFSETS[knob])
        value: float = _VALUE.unpack(data)[0] if len(data) == _VALUE.size else -1.0
        if not 0.0 <= value <= _MOST:
            raise UsageError(f"{self._path}: {knob} is {value:g}, which nobody sets; start the job again")
        return value

    def set(self, knob: Knob, value: float) -> None:
        """Set a knob."""
        os.pwrite(self._descriptor, _VALUE.pack(value), _OFFSETS[knob])
