"""How the lab's kernel intercepts its guests' system calls on this machine: by seccomp, or by ptrace.

With seccomp a guest process continues in its own handler of SIGSYS: no process is traced, and a lab takes half the
time. The kernel's argument `seccomp=` selects the mode. What the machine allows is found out by trying it, because a
container's filter, a sysctl or a security module can forbid it.
"""

import os
import subprocess
import sys
from enum import StrEnum
from functools import cache
from pathlib import Path

from c4bench.errors import UnhealthyError, UsageError

VARIABLE = "C4BENCH_LAB_MODE"
_TRACE_ME = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)"
_SECCOMP_TRIAL = Path(__file__).with_name("seccomp_trial.py")
_FIX = (
    "use Linux 5.9 or later with CONFIG_SECCOMP_FILTER; in a container allow the system calls seccomp and close_range "
    "(--security-opt seccomp=unconfined)"
)


class Mode(StrEnum):
    """How system calls are intercepted, which decides how long a lab takes; the fastest mode first."""

    SECCOMP = "seccomp"
    PTRACE = "ptrace"


def lab_mode() -> Mode:
    """The mode of labs on this machine: the one in `C4BENCH_LAB_MODE`, else the fastest that is allowed.

    Raises UnhealthyError where none is allowed, UsageError where the variable names no mode.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen and chosen not in list(Mode):
        raise UsageError(f"{VARIABLE}={chosen}: one of {', '.join(Mode)}, or unset it")
    wanted = [Mode(chosen)] if chosen else list(Mode)
    for mode in wanted:
        if not obstacle(mode):
            return mode
    raise UnhealthyError(f"a lab cannot run here: {'; '.join(map(obstacle, wanted))}")


@cache
def obstacle(mode: Mode) -> str:
    """Why this machine does not allow the mode, and what to do; "" where it does."""
    program = (str(_SECCOMP_TRIAL),) if mode is Mode.SECCOMP else ("-c", _TRACE_ME)
    tried = subprocess.run([sys.executable, "-I", *program], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    if mode is Mode.PTRACE:
        return "ptrace is forbidden: set kernel.yama.ptrace_scope=1 or less; in a container allow SYS_PTRACE"
    output = tried.stderr.strip().splitlines() or ["a trapped system call ends the process"]
    return f"{output[-1]}: {_FIX}"
