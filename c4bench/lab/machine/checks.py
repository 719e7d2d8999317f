"""What this machine needs to run the embedded lab, looked at one by one."""

import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import kernel
from c4bench.lab.machine.containment import contained, in_container
from c4bench.lab.machine.run import memory_directory
from c4bench.model.check import Check

__all__ = ["Check", "local_checks"]

_PYTHON = (3, 11)
_TRACE_ME = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)"
_IMPORT_PYVERBS = "import pyverbs.device; print(pyverbs.__path__[0])"
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_RUN_BYTES = 1 << 30
_OPEN_FILES = 8192  # a lab of eight hosts has opened 1,400


def local_checks() -> list[Check]:
    """Look at everything, whatever the others say: each mend can be done at once."""
    return [
        _machine(),
        _python(),
        _tools(),
        _try("kernel source", lambda: str(kernel.source_tarball()), "install the package linux-source"),
        _kernel(),
        _namespaces(),
        _ptrace(),
        _open_files(),
        _try("memory directory", memory_directory, "set TMPDIR to an executable directory with 4 GiB free"),
        _disk(),
        _pyverbs(),
    ]


def _try(name: str, look: Callable[[], str], mend: str) -> Check:
    try:
        return Check(name, True, look(), mend)
    except UnhealthyError as error:
        return Check(name, False, str(error), mend)


def _machine() -> Check:
    found = platform.machine()
    return Check("machine", found == "x86_64", found, "use --hosts=INVENTORY.yml: the lab's kernel runs on x86_64 only")


def _python() -> Check:
    wanted = ".".join(map(str, _PYTHON))
    return Check("Python", sys.version_info >= _PYTHON, platform.python_version(), f"use Python {wanted} or newer")


def _tools() -> Check:
    missing = kernel.missing_tools()
    detail = f"missing: {', '.join(missing)}" if missing else ", ".join(kernel.TOOLS)
    return Check("build tools", not missing, detail, "run `make setup` as root, or install them")


def _kernel() -> Check:
    built = kernel.find()
    return Check("lab kernel", built is not None, str(built.program) if built else "not built", "run `make setup`")


def _namespaces() -> Check:
    allowed = contained()
    kept = allowed or in_container()
    detail = "allowed" if allowed else "forbidden here" + ("; a warden keeps the lab together" if kept else "")
    mend = "set kernel.unprivileged_userns_clone=1 and user.max_user_namespaces; in a container C4BENCH_CONTAINER=1"
    return Check("user namespaces", kept, detail, mend)


def _ptrace() -> Check:
    """Try it: what the sysctl says is not all that can forbid it (a container's seccomp profile can)."""
    allowed = subprocess.run([sys.executable, "-c", _TRACE_ME], capture_output=True, check=False).returncode == 0
    scope = _YAMA.read_text().strip() if _YAMA.exists() else "absent"
    mend = "set kernel.yama.ptrace_scope=1 or less; in a container also allow SYS_PTRACE"
    return Check("ptrace", allowed, f"{'allowed' if allowed else 'forbidden'} (yama scope: {scope})", mend)


def _open_files() -> Check:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    detail = f"{most} allowed, {_OPEN_FILES} needed"
    return Check("open files", most >= _OPEN_FILES, detail, "raise the hard limit (ulimit -Hn)")


def _disk() -> Check:
    root = kernel.cache_root()
    while not root.exists():
        root = root.parent
    needed = _RUN_BYTES if kernel.find() else kernel.BUILD_BYTES
    free = shutil.disk_usage(root).free
    detail = f"{free >> 20} MiB free in {root}, {needed >> 20} needed"
    return Check("disk room", free >= needed, detail, "make room, or set C4BENCH_CACHE to a roomier place")


def _pyverbs() -> Check:
    """Import it, in a process of its own: one built for another Python is found and does not load."""
    tried = subprocess.run([sys.executable, "-c", _IMPORT_PYVERBS], capture_output=True, text=True, check=False)
    said = (tried.stdout if tried.returncode == 0 else tried.stderr).strip().splitlines() or ["it said nothing"]
    return Check("pyverbs", tried.returncode == 0, said[-1], "install python3-pyverbs, then `make setup` links it in")
