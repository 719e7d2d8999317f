"""Knobs a process fault may turn on a rank while it runs, in a small shared file.

Computing is modelled as sleeping (a virtual-time lab charges nothing for instructions), so a slow rank is one whose
sleeps are longer: the factor is read from memory at each step, with no system call.
"""

import mmap
import struct
from pathlib import Path
from typing import Self

from c4bench.errors import UsageError

_LAYOUT = struct.Struct("=8sd")
_MAGIC = b"c4knobs1"


class Controls:
    """The knobs of one rank. `compute_factor` multiplies the time it computes; 1.0 is as designed."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make the file with every knob neutral."""
        path.write_bytes(_LAYOUT.pack(_MAGIC, 1.0))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Attach to a rank's file. Raises UsageError when it is none."""
        try:
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: no such rank is running here ({error})") from None
        if memory[:8] != _MAGIC:
            raise UsageError(f"{path}: not a rank's controls")
        return cls(memory)

    @property
    def compute_factor(self) -> float:
        """How many times longer than designed the rank computes."""
        factor: float = _LAYOUT.unpack_from(self._memory)[1]
        return factor

    @compute_factor.setter
    def compute_factor(self, factor: float) -> None:
        _LAYOUT.pack_into(self._memory, 0, _MAGIC, factor)
