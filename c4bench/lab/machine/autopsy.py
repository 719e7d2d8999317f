"""Find out what a lab is doing by reading its kernel's memory.

Asking the kernel would interrupt it at a moment that the machine determines, so that no two runs would be the same; and
a lab with a process that spins would not answer.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

_WORD = struct.Struct("=Q")
_HALF = struct.Struct("=I")
# The system call's place in a process's saved registers, as ptrace orders them (struct user_regs_struct, sys/user.h).
_ORIGINAL_RAX = 15
_COMM_BYTES = 16
_TASKS_MAX = 4096
_RUNNING = 0
# The system calls a process usually waits in (x86-64); others are shown by number.
_CALLS = {
    0: "read",
    7: "poll",
    23: "select",
    34: "pause",
    35: "nanosleep",
    43: "accept",
    45: "recvfrom",
    47: "recvmsg",
    61: "wait4",
    202: "futex",
    230: "clock_nanosleep",
    232: "epoll_wait",
    247: "waitid",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
}


class Landmarks(msgspec.Struct, frozen=True):
    """Addresses of a kernel's clock and idle task, and offsets in a task's record."""

    clock: int
    first_task: int
    state: int
    tasks: int
    pid: int
    mm: int
    comm: int
    registers: int


class Autopsy:
    """Reads the memory of the kernel that is process `pid` of the machine; raises OSError once it has ended."""

    def __init__(self, pid: int, landmarks: Landmarks) -> None:
        self._path = Path(f"/proc/{pid}/mem")
        self._at = landmarks

    def clock_s(self) -> float:
        """The virtual clock, seconds since the lab's kernel started."""
        return self._word(self._at.clock) / 1e9

    def processes(self) -> list[str]:
        """One line for each process that is not a kernel thread: PID, name, and what it is doing."""
        return [self._line(task) for task in self._tasks() if self._is_user(task)]

    def _tasks(self) -> Iterator[int]:
        """Every record of the kernel's circular list, which starts and ends at the idle task."""
        task = self._next(self._at.first_task)
        for _ in range(_TASKS_MAX):
            if task == self._at.first_task:
                return
            yield task
            task = self._next(task)

    def _next(self, task: int) -> int:
        return self._word(task + self._at.tasks) - self._at.tasks

    def _line(self, task: int) -> str:
        pid = _HALF.unpack(self._read(task + self._at.pid, _HALF.size))[0]
        name = self._read(task + self._at.comm, _COMM_BYTES).split(b"\0")[0].decode(errors="replace")
        return f"{pid:>6} {name:<16} {self._doing(task)}"

    def _doing(self, task: int) -> str:
        if _HALF.unpack(self._read(task + self._at.state, _HALF.size))[0] == _RUNNING:
            return "running"
        call = self._register(task, _ORIGINAL_RAX)
        return f"waiting in {_CALLS.get(call, f'system call {call}')}"

    def _is_user(self, task: int) -> bool:
        """Whether the task has its own memory: kernel threads have none."""
        return self._word(task + self._at.mm) != 0

    def _register(self, task: int, number: int) -> int:
        return self._word(task + self._at.registers + number * _WORD.size)

    def _word(self, address: int) -> int:
        value: int = _WORD.unpack(self._read(address, _WORD.size))[0]
        return value

    def _read(self, address: int, length: int) -> bytes:
        with self._path.open("rb", buffering=0) as memory:
            memory.seek(address)
            data = memory.read(length)
        if len(data) < length:
            raise OSError(f"no memory at {address:#x}")
        return data
