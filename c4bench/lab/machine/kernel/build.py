"""Set-up of the lab's kernel: get a source, build it, check what was built, and only then use it."""

import errno
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import signals
from c4bench.lab.machine.kernel import cache, compiling, selfcheck, source, tree, versions
from c4bench.lab.machine.kernel.cache import Facts, Kernel
from c4bench.lab.machine.kernel.steps import StepError, Steps, no_space
from c4bench.lab.machine.launch import require_machine

TOOLS = ("gcc", "make", "flex", "bison", "bc", "xz", "tar", "patch", "strip", "nm", "dpkg-deb")
BUILD_BYTES = 1_500_000_000
_SCRATCH = "build-"
_LOCK = "build.lock"  # held by a build, with its process number in it
_CHECKED_HOSTS = 2  # of the lab that checks a kernel


def build(began: float | None = None) -> Kernel:
    """Return the kernel that a lab uses, building it first when needed.

    `began` is when a set-up from nothing began, in seconds since 1970; its duration is saved with the kernel.
    Raises C4Error, and leaves nothing but a log, when source, tools, space, the build or the check of it fail, and when
    another process is building.
    """
    root = cache.cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / _LOCK), signals.unwinding():
            return cache.find() or _build_in(root, began)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise no_space(root, "building the lab's kernel") from None
        raise UnhealthyError(f"{error.filename or root}: {error.strerror}: correct it, or set C4BENCH_CACHE") from None


def state() -> str:
    """What there is of a kernel that is not built: nothing, one being built, or the rest of a build that was killed."""
    lock = cache.cache_root() / _LOCK
    try:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"being built by process {lock.read_text()}"
    except FileNotFoundError:
        return "not built"
    killed = any(cache.cache_root().glob(f"{_SCRATCH}*/"))
    return "half built, by a set-up that was killed" if killed else "not built"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnhealthyError(f"the lab's kernel is {state()}: run this again when that has ended") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _build_in(root: Path, began: float | None) -> Kernel:
    _check_machine(root)
    for left_over in (*root.glob(f"{_SCRATCH}*/"), *root.glob("fetch-*/")):
        shutil.rmtree(left_over, ignore_errors=True)  # of a build that was killed
    origin = source.obtain(root)
    home = cache.home_of(origin)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=root, ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        staged = scratch / "staged"
        facts = _compile(origin, staged, scratch, root / "build.log")
        selfcheck.prove(cache.describe(staged, facts), scratch)
        setup_s = None if began is None else round(time.time() - began, 1)
        cache.describe(staged, replace(facts, setup_s=setup_s))
        shutil.rmtree(home, ignore_errors=True)
        staged.rename(home)
    return cache.require()


def _compile(origin: Path, staged: Path, scratch: Path, log: Path) -> Facts:
    """Build the kernel of this source in the folder `staged` of `scratch`; the log is kept if that fails."""
    started = time.monotonic()
    log.unlink(missing_ok=True)
    unpacked = scratch / "source"
    steps = Steps(scratch, compiling.environment(unpacked))
    try:
        version = tree.unpack(tree.tarball_of(origin, scratch / "package", steps), unpacked, steps)
        versions.refuse_old(version, str(origin))
        _warn(versions.warning(version))
        landmarks = compiling.build(unpacked, version, staged, steps)
    except StepError as error:
        steps.write_log(log)
        raise UnhealthyError(f"{error} (log: {log})") from None
    except UnhealthyError:
        steps.write_log(log)
        raise
    return Facts(str(version), cache.identity(origin), round(time.monotonic() - started, 1), landmarks)


def _check_machine(root: Path) -> None:
    """Raises UnhealthyError, before a build takes minutes, if this machine cannot build a kernel or run a lab."""
    missing = missing_tools()
    if missing:
        raise UnhealthyError(f"not installed: {', '.join(missing)}; install them, or run `c4bench setup` as root")
    if {" ", ":"} & set(str(root)):
        raise UnhealthyError(f"{root}: Linux cannot be built where a path has a space or colon: set C4BENCH_CACHE")
    free = shutil.disk_usage(root).free
    if free < BUILD_BYTES:
        raise UnhealthyError(
            f"{root} has {free >> 20} MiB free and the build needs {BUILD_BYTES >> 20}: make room or set C4BENCH_CACHE"
        )
    require_machine(_CHECKED_HOSTS)


def missing_tools() -> list[str]:
    """The build tools that are not on PATH."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def _warn(text: str) -> None:
    if text:
        sys.stderr.write(f"c4bench: {text}\n")
