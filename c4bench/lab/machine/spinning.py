"""Find out where a lab's guest computes that never sleeps: in which library, and at which place there.

Each guest process is a process of the machine too, a child of the lab's kernel, and has the guest's memory where the
guest has it. One that computes is stopped for a moment to read where it is; in virtual time that moment takes no time.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct, unpack_from

# ptrace(2): requests, and the place of the instruction pointer in struct user_regs_struct (sys/user.h).
_GET_REGISTERS, _DETACH, _SEIZE, _INTERRUPT = 12, 17, 0x4206, 0x4207
_REGISTERS, _POINTER = 27, 16
_WALL = 0x40000000
_PAGE = 4096
_PAGES_AT_MOST = 1 << 16
# elf(5)
_MAGIC = b"\x7fELF\x02"
_SEGMENT, _ENTRY = Struct("<2I6Q"), Struct("<qQ")
_SEGMENTS_AT, _COUNT_AT = 32, 56
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_STRINGS, _NAME = 5, 14
_NAME_BYTES = 256

_libc = ctypes.CDLL(None, use_errno=True)


def computing_at(kernel: int) -> tuple[str, ...]:
    """Where each guest of the lab's kernel, process `kernel` of the machine, that computes now is: `libm.so.6+0x1f2`.

    Empty where nobody computes, or where the machine, or the lab's ptrace mode, does not let anybody look.
    """
    places = []
    for pid in _computing(kernel):
        with suppress(OSError):
            places.append(_place(pid))
    return tuple(places)


def _computing(kernel: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{kernel}/task").iterdir():
            for child in (task / "children").read_text().split():
                if Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].startswith("R"):
                    yield int(child)


def _place(pid: int) -> str:
    with _stopped(pid), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        registers = (ctypes.c_ulonglong * _REGISTERS)()
        _ptrace(_GET_REGISTERS, pid, ctypes.addressof(registers))
        at = registers[_POINTER]
        image = _Image.around(memory.fileno(), at)
        return f"{image.name()}+{at - image.base:#x}" if image else f"{at:#x}"


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Stop a process of ours while the block runs. Raises OSError where another one traces it."""
    _ptrace(_SEIZE, pid)
    try:
        _ptrace(_INTERRUPT, pid)
        os.waitpid(pid, _WALL)
        yield
    finally:
        _ptrace(_DETACH, pid)


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, ctypes.c_void_p(data)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _Image:
    """A program or library in the memory that is open as `memory`, from address `base` on."""

    def __init__(self, memory: int, base: int) -> None:
        self._memory, self.base = memory, base
        header = os.pread(memory, _PAGE, base)
        (at,) = unpack_from("<Q", header, _SEGMENTS_AT)
        (count,) = unpack_from("<H", header, _COUNT_AT)
        self._segments = [_SEGMENT.unpack_from(header, at + i * _SEGMENT.size) for i in range(min(count, 32))]

    @classmethod
    def around(cls, memory: int, address: int) -> "_Image | None":
        """The image whose segments cover `address`; None where its first page is not in memory."""
        for page in range(address & -_PAGE, max(0, address - _PAGES_AT_MOST * _PAGE), -_PAGE):
            with suppress(OSError):
                if os.pread(memory, len(_MAGIC), page) == _MAGIC:
                    image = cls(memory, page)
                    return image if address < page + image._end() else None
        return None

    def _end(self) -> int:
        lowest = min((s[3] for s in self._segments if s[0] == _LOAD), default=0)
        return max((s[3] + s[6] for s in self._segments if s[0] == _LOAD), default=0) - (lowest & -_PAGE)

    def name(self) -> str:
        """What a library calls itself (DT_SONAME), or that it is the program."""
        if any(segment[0] == _INTERPRETER for segment in self._segments):
            return "the program itself"
        found = {}
        for segment in self._segments:
            if segment[0] == _DYNAMIC:
                table = os.pread(self._memory, min(segment[6], _PAGE), self._address(segment[3]))
                found = dict(_ENTRY.iter_unpack(table[: len(table) // _ENTRY.size * _ENTRY.size]))
        if _NAME not in found or _STRINGS not in found:
            return "a library without a name"
        text = os.pread(self._memory, _NAME_BYTES, self._address(found[_STRINGS]) + found[_NAME])
        return text.split(b"\0")[0].decode(errors="replace")

    def _address(self, value: int) -> int:
        """An address of the file, which the loader may have made one of the memory."""
        return value if value >= self.base else self.base + value
