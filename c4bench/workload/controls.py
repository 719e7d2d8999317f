"""Knobs a process fault may turn on a rank while it runs, in a small shared file.

Computing is modelled as sleeping (a virtual-time lab charges nothing for instructions), so a slow rank is one whose
sleeps are longer: the factor is read from memory at each step, with no system call. That sleep stands for a kernel on
the rank's accelerator, so what befalls the accelerator befalls it: it takes longer, does not return, or ends with an
error. What only the rank can do to itself is an order, which it obeys at its next step or operation.
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
# How soon a hang ends once it is called off.
_SLICE_US = 10_000
# Longer than any hang: nobody may ask for the interpreter's lock between two slices.
_NEVER_S = 1e6


class DeviceError(UnhealthyError):
    """A call to the accelerator failed; nothing that it holds can be relied on any more."""


class Controls:
    """The knobs of one rank.

    `compute_factor` multiplies the time it computes; 1.0 is as designed. Until `hang_until_s` (the host's monotonic
    clock) it holds the interpreter's lock and does nothing. An `exit_code` other than 0 ends it with that code. Until
    `stuck_until_s` its computing does not return, with the interpreter free; a `device_error` is how it ends.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make the file with every knob neutral."""
        path.write_bytes(_MAGIC + b"".join(_VALUE.pack(value) for value in _NEUTRAL.values()))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Attach to a rank's file. Raises UsageError when it is none."""
        try:
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), _BYTES)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: no such rank is running here ({error})") from None
        if memory[: len(_MAGIC)] != _MAGIC:
            raise UsageError(f"{path}: not a rank's controls")
        return cls(memory)

    def read(self, knob: Knob) -> float:
        """Where a knob stands."""
        value: float = _VALUE.unpack_from(self._memory, _OFFSETS[knob])[0]
        return value

    def set(self, knob: Knob, value: float) -> None:
        """Set a knob; the others stay as they are."""
        _VALUE.pack_into(self._memory, _OFFSETS[knob], value)

    def compute(self, duration_s: float) -> None:
        """A step's computing, as long as the factor makes it; then what the rank has been ordered to do to itself.

        Raises DeviceError when the accelerator reports one.
        """
        time.sleep(duration_s * self.read("compute_factor"))
        while self._before("stuck_until_s"):
            time.sleep(_SLICE_US / 1e6)
        if number := int(self.read("device_error")):
            raise DeviceError(f"the accelerator reports error {number}; take it out of use, and see its driver's log")
        self.apply_orders()

    def apply_orders(self) -> None:
        """Hang or exit, when that was ordered; returns when a hang is over. Called by the rank itself."""
        if code := int(self.read("exit_code")):
            # As a library that calls exit does: no exception that the communicator could pass on.
            os._exit(code)
        if self._before("hang_until_s"):
            self._hang()

    def _before(self, knob: Knob) -> bool:
        """Whether the knob's time is still to come; without one the clock is not read, which would take time."""
        until_s = self.read(knob)
        return bool(until_s) and time.monotonic() < until_s

    def _hang(self) -> None:
        """In slices, so that it can be called off; its end needs nobody, should whoever ordered it be gone."""
        sleep = ctypes.PyDLL(None).usleep  # unlike CDLL it keeps the interpreter's lock meanwhile
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(_NEVER_S)
        try:
            while self._before("hang_until_s"):
                sleep(_SLICE_US)
        finally:
            sys.setswitchinterval(usual_s)
