"""Exhaust the memory of a control group from a protected child."""

import os
import select
import signal
from pathlib import Path
from typing import NoReturn

# The kernel kills a process in milliseconds; after this time it cannot.
_TIMEOUT_S = 20.0


def exhaust(group: Path, limit_bytes: int) -> None:
    """Exhaust it until the kernel has killed a process of the group, or the child has had its time."""
    child = os.fork()
    if child == 0:
        _exhaust(group, limit_bytes)
    descriptor = os.pidfd_open(child)
    try:
        if not select.select([descriptor], [], [], _TIMEOUT_S)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        os.close(descriptor)


def _exhaust(group: Path, limit_bytes: int) -> NoReturn:
    try:
        # Exempt this process from the out-of-memory killer.
        Path("/proc/self/oom_score_adj").write_text("-1000")
        # The process that is killed must run first: the kernel retries the allocation until that process has ended.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        (group / "memory.max").write_text(str(limit_bytes))
        # One call, which fails and frees everything; touching page by page would block in a page fault at the limit.
        os.posix_fallocate(os.memfd_create("c4bench"), 0, 2 * limit_bytes)
    finally:
        os._exit(0)
