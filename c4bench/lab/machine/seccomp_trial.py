"""Try what a guest process of a lab does in seccomp mode; the exit code is 0 where this machine allows all of it.

It closes inherited descriptors, gives up new privileges, installs a filter that traps one system call, makes that call,
and ends in the handler of the trap's signal. It is a separate program because a filter cannot be removed.
"""

import ctypes
import os
import signal
import struct
import sys
import time

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER, _TSYNC = 1, 1
_SYS_CLOSE_RANGE, _SYS_SECCOMP, _SYS_CLOCK_NANOSLEEP = 436, 317, 230  # x86-64
# Of a classic BPF program (linux/filter.h, linux/seccomp.h): load a word, compare, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _TRAP = 0x7FFF0000, 0x00030000
_FILTER = (
    (_LOAD, 0, 0, 0),
    (_JUMP_IF_EQUAL, 0, 1, _SYS_CLOCK_NANOSLEEP),
    (_RETURN, 0, 0, _TRAP),
    (_RETURN, 0, 0, _ALLOW),
)
_libc = ctypes.CDLL(None)


def main() -> None:
    """Exit with a message about the first thing that is forbidden."""
    signal.signal(signal.SIGSYS, lambda *_: os._exit(0))
    if _libc.syscall(_SYS_CLOSE_RANGE, 3, 0xFFFFFFFF, 0):
        sys.exit("close_range is forbidden")
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        sys.exit("giving up new privileges is forbidden")
    if _filter():
        sys.exit("seccomp filters are forbidden")
    time.sleep(0)
    sys.exit("a trapped system call goes through")


def _filter() -> int:
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _FILTER))
    program = struct.pack("HxxxxxxQ", len(_FILTER), ctypes.addressof(steps))
    refused: int = _libc.syscall(_SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, _TSYNC, program)
    return refused


if __name__ == "__main__":
    main()
