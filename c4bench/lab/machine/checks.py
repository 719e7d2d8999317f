"""Check each thing that this machine needs to run the embedded lab."""

import platform
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from c4bench.errors import C4Error
from c4bench.lab.machine import kernel, modes, packages
from c4bench.lab.machine.containment import contained, in_container
from c4bench.lab.machine.kernel import build, cache, source
from c4bench.lab.machine.modes import Mode
from c4bench.lab.machine.run import MEMORY_BYTES, memory_directory, open_files_needed

__all__ = ["Check", "immutable_checks", "local_checks"]

_PYTHON = (3, 11)
_MEMINFO = Path("/proc/meminfo")
_RUN_BYTES = 1 << 30
_LAB_HOSTS = 8  # of the default topology


class Check(msgspec.Struct, frozen=True):
    """One check: what was found, and the `fix` for when it is not as needed."""

    name: str
    ok: bool
    detail: str
    fix: str


def local_checks() -> list[Check]:
    """All checks, even after one has failed: every fix can then be made at once."""
    return [
        _machine(),
        _python(),
        _packages(),
        _tools(),
        _try("kernel source", _source, f"set {cache.SOURCE_VARIABLE} to a linux-source package or tarball"),
        _kernel(),
        _namespaces(),
        _try("lab mode", _mode, f"allow seccomp or ptrace, and unset {modes.VARIABLE}"),
        _memory(),
        _open_files(),
        _try("memory directory", memory_directory, "set TMPDIR to an executable directory with 4 GiB free"),
        _disk(),
        _pyverbs(),
    ]


def immutable_checks() -> list[Check]:
    """What no set-up can change."""
    return [_machine(), _python()]


def _try(name: str, look: Callable[[], str], fix: str) -> Check:
    try:
        return Check(name, True, look(), fix)
    except C4Error as error:
        return Check(name, False, str(error), fix)


def _machine() -> Check:
    kind = platform.machine()
    return Check("machine", kind == "x86_64", kind, "use --hosts=INVENTORY.yml: the lab's kernel runs on x86_64 only")


def _python() -> Check:
    wanted = ".".join(map(str, _PYTHON))
    return Check("Python", sys.version_info >= _PYTHON, platform.python_version(), f"use Python {wanted} or newer")


def _packages() -> Check:
    missing = packages.missing()
    detail = f"missing: {', '.join(missing)}" if missing else "installed"
    return Check("packages", not missing, detail, packages.advice(missing))


def _tools() -> Check:
    missing = build.missing_tools()
    detail = f"missing: {', '.join(missing)}" if missing else ", ".join(build.TOOLS)
    return Check("build tools", not missing, detail, "install them, or run `c4bench setup` as root")


def _source() -> str:
    """Where the kernel's source is or would come from, found out without the network."""
    here = source.at_hand(kernel.cache_root())
    if here:
        return str(here)
    source.require_tools()
    return f"to be fetched from {source.where(source.mirrors())}"


def _kernel() -> Check:
    built = kernel.find()
    detail = f"Linux {built.version}: {built.program}" if built else build.state()
    return Check("lab kernel", built is not None, detail, "run `c4bench setup`")


def _namespaces() -> Check:
    allowed = contained()
    kept = allowed or in_container()
    detail = "allowed" if allowed else "forbidden here" + ("; a reaper keeps the lab together" if kept else "")
    fix = "set kernel.unprivileged_userns_clone=1 and user.max_user_namespaces; in a container C4BENCH_CONTAINER=1"
    return Check("user namespaces", kept, detail, fix)


def _mode() -> str:
    """Which of the two modes a lab would run in, and why it is not the faster one."""
    mode = modes.lab_mode()
    if mode is Mode.SECCOMP:
        return mode
    why = modes.obstacle(Mode.SECCOMP) or f"{modes.VARIABLE} says so"
    return f"{mode}, which takes twice as long as seccomp: {why}"


def _memory() -> Check:
    available = re.search(r"^MemAvailable: *(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    free = int(available[1]) << 10 if available else 0
    detail = f"{free >> 20} MiB available, {MEMORY_BYTES >> 20} that a lab may fill"
    return Check("memory", free >= MEMORY_BYTES, detail, "end other programs, or use a machine with 8 GiB")


def _open_files() -> Check:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = open_files_needed(_LAB_HOSTS)
    detail = f"{most} allowed, {needed} needed for {_LAB_HOSTS} hosts"
    return Check("open files", most >= needed, detail, "raise the hard limit (ulimit -Hn)")


def _disk() -> Check:
    root = kernel.cache_root()
    while not root.exists():
        root = root.parent
    needed = _RUN_BYTES if kernel.find() else build.BUILD_BYTES
    free = shutil.disk_usage(root).free
    detail = f"{free >> 20} MiB free in {root}, {needed >> 20} needed"
    return Check("disk room", free >= needed, detail, "make room, or set C4BENCH_CACHE to a larger disk")


def _pyverbs() -> Check:
    why = packages.pyverbs_obstacle()
    return Check("pyverbs", not why, why or "can be imported", "install python3-pyverbs, then run `c4bench setup`")
