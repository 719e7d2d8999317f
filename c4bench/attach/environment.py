"""The environment in which a program is attached, and why some programs cannot be."""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from c4bench.attach.launchers import JOB

SOCKET, RECORDS = "C4BENCH_ATTACH_SOCKET", "C4BENCH_ATTACH_RECORDS"
PRELOAD, PROFILER = "LD_PRELOAD", "NCCL_PROFILER_PLUGIN"
# Which NIC goes on for which, `NIC=NIC,...`; in place of such a list, as the agent knows from the inventory.
FAILOVER, AS_INVENTORY = "C4BENCH_FAILOVER", "inventory"
BALANCE = "C4BENCH_BALANCE"  # load is shared with the other NIC
# UCX waits for events of a NIC that it does not use yet; with this it polls, which failover needs.
UCX_EVENTS = "UCX_ADAPTIVE_PROGRESS"
FOLDERS, NCCL_VERBS = "LD_LIBRARY_PATH", "NCCL_IBVERBS_LIB"
_PLACES = {SOCKET: "/run/c4bench/attach.sock", RECORDS: "/dev/shm/c4bench-attach"}
_SCRIPTS_AT_MOST = 4  # as the kernel follows interpreters (BINPRM_MAX_RECURSION)
_CAPABILITIES = "security.capability"


def variables(
    libraries: Sequence[Path], profiler: Path, current: Mapping[str, str], in_place: Path | None = None
) -> dict[str, str]:
    """The variables to set, for a program that would otherwise have the environment `current`.

    What a user has preloaded comes after ours; a place, a profiler or a job that is named already stays. `in_place` is
    a library to find in libibverbs' place.
    """
    found = {}
    if libraries:
        found[PRELOAD] = _first(libraries, current.get(PRELOAD, "").replace(" ", ":"))
    if in_place:
        found[FOLDERS] = _first([in_place.parent], current.get(FOLDERS, ""))
        found[NCCL_VERBS] = str(in_place)
    found |= {name: current.get(name) or place for name, place in _PLACES.items()}
    found[PROFILER] = current.get(PROFILER) or str(profiler)
    if current.get(JOB):
        found[JOB] = current[JOB]
    return found


def failover_variables(current: Mapping[str, str], *, balance: bool = False) -> dict[str, str]:
    """The variables to set besides for a program that goes on at another NIC; what a user has set stays.

    With `balance` its queue pairs use both.
    """
    found = {FAILOVER: current.get(FAILOVER) or AS_INVENTORY, UCX_EVENTS: current.get(UCX_EVENTS) or "n"}
    return found | ({BALANCE: "1"} if balance or current.get(BALANCE) else {})


def _first(ours: Sequence[Path], listed: str) -> str:
    """These before the others of a list with colons."""
    names = [str(path) for path in ours]
    return ":".join([*names, *(name for name in listed.split(":") if name and name not in names)])


class _Elf(NamedTuple):
    """Where the header of an ELF file of one class (elf(5)) has the offset of its program headers and their size."""

    offset_at: int
    offset_bytes: int
    size_at: int  # two bytes, and two more for their number


_ELF = {1: _Elf(28, 4, 42), 2: _Elf(32, 8, 54)}
_HEADER_BYTES = 64
_PT_INTERP = 3


def obstacle(program: Path) -> str:
    """Why a program runs without what would be preloaded, "" where nothing is in the way. Raises OSError.

    The loader, which preloads, is not called for a static program. It ignores libraries of another architecture, and
    others' libraries for a program with rights that its user does not have.
    """
    for _ in range(_SCRIPTS_AT_MOST):
        with program.open("rb") as file:
            head = file.read(_HEADER_BYTES)
            if head.startswith(b"\x7fELF"):
                return _privileged(program) or _foreign(head) or ("" if _interpreted(file.fileno(), head) else _STATIC)
            line = (head + file.readline()).partition(b"\n")[0]
        words = line.removeprefix(b"#!").split()
        if not line.startswith(b"#!") or not words:
            break
        program = Path(os.fsdecode(words[0]))
    return ""  # a script, which a shell runs


_STATIC = "it is statically linked"


def _privileged(program: Path) -> str:
    status = program.stat()
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return "it is set-uid"
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getgid():
        return "it is set-gid"
    with suppress(OSError):  # it has none
        if os.getuid() and os.getxattr(program, _CAPABILITIES):
            return "it has capabilities of its own"
    return ""


def _foreign(head: bytes) -> str:
    """Class, byte order and machine are compared with those of this process's own program."""
    with Path("/proc/self/exe").open("rb") as file:
        own = file.read(_HEADER_BYTES)
    return "" if (head[4:6], head[18:20]) == (own[4:6], own[18:20]) else "it is of another architecture"


def _interpreted(descriptor: int, head: bytes) -> bool:
    """Whether one of the program headers names the loader."""
    layout = _ELF[head[4]]
    offset = _number(head, layout.offset_at, layout.offset_bytes)
    size, count = _number(head, layout.size_at, 2), _number(head, layout.size_at + 2, 2)
    headers = os.pread(descriptor, size * count, offset)
    return any(_number(headers, at, 4) == _PT_INTERP for at in range(0, len(headers), max(size, 4)))


def _number(data: bytes, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "little")
