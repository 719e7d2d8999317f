"""Set-up of the lab's kernel: get a source, build it, check what was built, and only then use it."""

import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from c4bench.errors import UnhealthyError
from c4bench.lab import topology_file
from c4bench.lab.machine import containment
from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import cache, source
from c4bench.lab.machine.kernel.cache import (
    ADDED,
    CONFIG,
    LANDMARKS,
    PATCH,
    PRELOAD,
    STAMP,
    Facts,
    Kernel,
    Version,
)
from c4bench.lab.machine.kernel.source import tarball_of, unpack
from c4bench.lab.machine.kernel.steps import BuildSteps, ProgressLine, StepError, no_space
from c4bench.lab.machine.launch import LAB_DIRECTORY, launch, require_machine
from c4bench.lab.spec import Report
from c4bench.units import payload_bound

# First in PATH, so that two users of one distribution build with the same programs, whatever else they have installed.
_DISTRIBUTION = "/usr/sbin:/usr/bin:/sbin:/bin"
_COMPILED_FILES = 888  # what the configuration compiles, for the progress line only
# The kernel contains its own configuration, which names the versions of these compilers even though it uses none.
_UNUSED = ("RUSTC=none", "BINDGEN=none", "PAHOLE=none")
_SYMBOL = re.compile(r"^(CONFIG_\w+)=(.*)$", re.MULTILINE)


def environment(tree: Path) -> dict[str, str]:
    """The variables that make the built kernel the same for every folder and every user."""
    path = ":".join(filter(None, (_DISTRIBUTION, os.environ.get("PATH"))))
    return {**STAMP, "PATH": path, "KCONFIG_ALLCONFIG": str(CONFIG), "KCFLAGS": f"-ffile-prefix-map={tree}=."}


def compile_kernel(tree: Path, version: Version, staged: Path, steps: BuildSteps) -> Landmarks:
    """Build kernel and preloaded library into the new folder `staged`. Raises UnhealthyError."""
    staged.mkdir()
    _patch(tree, version, steps)
    make = ["make", "-C", str(tree), "ARCH=um", *_UNUSED]
    steps.run("configuring the kernel", [*make, "allnoconfig"])
    _check_config(tree, version)
    _make([*make, f"-j{os.cpu_count() or 1}", "linux"], steps)
    steps.run("stripping the kernel", ["strip", "-o", str(staged / "linux"), str(tree / "linux")])
    shared = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(staged / "preload.so"), str(PRELOAD)]
    steps.run(f"compiling {PRELOAD.name}", shared)
    return _landmarks(tree, make, steps)


def _patch(tree: Path, version: Version, steps: BuildSteps) -> None:
    try:
        steps.run("patching", ["patch", "--strip=1", "--fuzz=0", f"--directory={tree}", f"--input={PATCH}"])
    except StepError as error:
        raise UnhealthyError(f"{PATCH.name} does not fit Linux {version} ({error.reason}): {cache.advice()}") from None
    for file, folder in ADDED.items():
        shutil.copy(file, tree / folder)


def _check_config(tree: Path, version: Version) -> None:
    gone = vanished(CONFIG.read_text(), (tree / ".config").read_text())
    if gone:
        raise UnhealthyError(
            f"Linux {version} does not take {', '.join(gone)} of {CONFIG.name}: correct it, or {cache.advice()}"
        )


def vanished(wanted: str, configured: str) -> list[str]:
    """The symbols of a configuration that the resulting one lacks, or has with another value."""
    got = dict(_SYMBOL.findall(configured))
    return [name for name, value in _SYMBOL.findall(wanted) if got.get(name) != value]


def _make(argv: list[str], steps: BuildSteps) -> None:
    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += line.startswith("  CC ")
        progress.show(0.99 * compiled / _COMPILED_FILES if compiled < _COMPILED_FILES else 0.99)

    with ProgressLine("building the lab's kernel") as progress:
        steps.run("building the lab's kernel", argv, count)


def _landmarks(tree: Path, make: list[str], steps: BuildSteps) -> Landmarks:
    """The addresses and offsets that the autopsy of a lab needs, from a built tree's symbols and headers."""
    shutil.copy(LANDMARKS, tree / "kernel" / LANDMARKS.name)
    assembly = f"kernel/{LANDMARKS.stem}.s"
    steps.run(f"compiling {LANDMARKS.name}", [*make, assembly])
    offset = {name: int(value) for name, value in re.findall(r"->(\w+) \$(\d+) ", (tree / assembly).read_text())}
    listed = [
        line.split() for line in steps.run("reading the kernel's symbols", ["nm", str(tree / "linux")]).splitlines()
    ]
    address = {words[2]: int(words[0], 16) for words in listed if len(words) == 3}
    try:
        return Landmarks(clock=address["time_travel_time"], first_task=address["init_task"], **offset)
    except (KeyError, TypeError) as error:
        raise UnhealthyError(f"the built kernel lacks a landmark ({error}): {cache.advice()}") from None


_TOPOLOGY = "pair"
_SEED = 1
_BOOTS = ("first", "again")
_LIMIT_S = 120.0  # a boot takes a tenth of it on two quiet cores
_OF_BOUND = (0.95, 1.005)
_TROUBLE = re.compile(r"(?:BUG|WARNING|INFO: task|Oops|Kernel panic|Call Trace)\b.*")


def prove(built: Kernel, scratch: Path) -> Report:
    """Boot it twice, with all files in `scratch`. Raises UnhealthyError if it fails the check."""
    reports = []
    with ProgressLine("checking the built kernel") as progress:
        for number, name in enumerate(_BOOTS):
            reports.append(_boot(built, scratch / name))
            progress.show((number + 1) / len(_BOOTS))
    if len(set(reports)) > 1:
        raise _unfit(built, "two boots of one seed did not give the same bytes")
    report = msgspec.json.decode(reports[0], type=Report)
    fraction = report.goodput_bps / payload_bound(topology_file.load(_TOPOLOGY).nic_rate_bps)
    least, most = _OF_BOUND
    if not least <= fraction <= most:
        raise _unfit(built, f"RDMA runs at {fraction:.3f} of the payload bound, not {least:g} to {most:g}")
    return report


def _boot(built: Kernel, directory: Path) -> bytes:
    directory.mkdir()
    report = directory / "report.json"
    command = [sys.executable, "-m", "c4bench.lab.guest.selfcheck", str(report)]
    fabric = topology_file.load(_TOPOLOGY)
    try:
        ended = launch(fabric, command, directory, seed=_SEED, agents=False, limit_s=_LIMIT_S, kernel=built)
    except UnhealthyError as error:
        raise _unfit(built, str(error).splitlines()[0]) from None
    if ended.exit_code:
        raise _unfit(built, f"a transfer in the lab ended with exit code {ended.exit_code}")
    trouble = _TROUBLE.search((directory / LAB_DIRECTORY / "dmesg.log").read_text(errors="replace"))
    if trouble:
        raise _unfit(built, f"it says: {trouble[0]}")
    return report.read_bytes()


def _unfit(built: Kernel, why: str) -> UnhealthyError:
    return UnhealthyError(f"the built kernel (Linux {built.version}) failed its check and is not used: {why}")


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
        with _locked(root / _LOCK), containment.unwinding():
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
        prove(cache.describe(staged, facts), scratch)
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
    steps = BuildSteps(scratch, environment(unpacked))
    try:
        version = unpack(tarball_of(origin, scratch / "package", steps), unpacked, steps)
        cache.refuse_old(version, str(origin))
        _warn(cache.warning(version))
        landmarks = compile_kernel(unpacked, version, staged, steps)
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
