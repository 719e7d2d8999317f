"""Build the user-mode kernel once, from the distribution's kernel source, into a cache.

Of the kernel nothing is in this repository but what is changed in it (kernel.patch): it is built on the user's machine
from the source package the distribution ships (GPL-2.0), and runs as a separate program.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.autopsy import Landmarks

_HERE = Path(__file__).parent
CONFIG = _HERE / "kernel.config"
PATCH = _HERE / "kernel.patch"
PRELOAD = _HERE / "preload.c"
LANDMARKS = _HERE / "landmarks.c"
SOURCES = Path("/usr/src")
TOOLS = ("gcc", "make", "flex", "bison", "bc", "xz", "tar", "patch", "strip", "nm")
BUILD_BYTES = 2_500_000_000
_FACTS = "kernel.json"
_RECIPE = 3  # raised when the way of building changes in what is built
_COMPILED_FILES = 840  # what the configuration compiles, for the progress line only

# The build's own stamp is hashed into the kernel's entropy at boot: pin it, or two machines would replay differently.
_STAMP = {
    "KBUILD_BUILD_TIMESTAMP": "2026-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER": "c4bench",
    "KBUILD_BUILD_HOST": "lab",
    "KBUILD_BUILD_VERSION": "1",
}


class _Facts(msgspec.Struct, frozen=True):
    version: str
    build_s: float
    landmarks: Landmarks


class Kernel(msgspec.Struct, frozen=True):
    """A built kernel's folder, how long the build took on the machine's clock, and where things are in its memory."""

    home: Path
    version: str
    build_s: float
    landmarks: Landmarks

    @property
    def program(self) -> Path:
        """The kernel, an ordinary program."""
        return self.home / "linux"

    @property
    def preload(self) -> Path:
        """What is preloaded into it to keep the machine's chance and timing out."""
        return self.home / "preload.so"


def cache_root() -> Path:
    """`$C4BENCH_CACHE`, else the user's cache directory."""
    explicit = os.environ.get("C4BENCH_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "c4bench"


def source_tarball(root: Path = SOURCES) -> Path:
    """The newest kernel source package on the machine. Raises UnhealthyError when there is none."""
    found = sorted(root.glob("linux-source-*.tar.xz"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UnhealthyError(f"no linux-source-*.tar.xz in {root}: install the package linux-source")
    return found[-1]


def missing_tools() -> list[str]:
    """The build tools that are not on PATH."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def _cache_key(tarball: Path) -> str:
    digest = hashlib.sha256(f"{tarball.name} {tarball.stat().st_size} {_RECIPE} {sorted(_STAMP.items())}".encode())
    for part in (CONFIG, PATCH, PRELOAD, LANDMARKS):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:12]


def find() -> Kernel | None:
    """The cached kernel that fits this source and configuration, or None."""
    try:
        home = cache_root() / f"kernel-{_cache_key(source_tarball())}"
    except UnhealthyError:
        return None
    return _load(home)


def require() -> Kernel:
    """The cached kernel; UnhealthyError says how to build it when it is missing."""
    kernel = find()
    if kernel is None:
        raise UnhealthyError("the lab's kernel is not built: run `make setup`")
    return kernel


def _load(home: Path) -> Kernel | None:
    try:
        facts = msgspec.json.decode((home / _FACTS).read_bytes(), type=_Facts)
    except FileNotFoundError:
        return None
    return Kernel(home, facts.version, facts.build_s, facts.landmarks)


def build() -> Kernel:
    """Return the cached kernel, building it first when needed (3 to 4 minutes on two cores).

    Raises UnhealthyError, and leaves nothing but a log, when tools, space or the build itself fail.
    """
    tarball = source_tarball()
    root = cache_root()
    home = root / f"kernel-{_cache_key(tarball)}"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "build.lock"):
        return _load(home) or _build_into(home, tarball)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_into(home: Path, tarball: Path) -> Kernel:
    _check_machine(home.parent)
    log_path = home.with_suffix(".log")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=home.parent) as scratch, log_path.open("w") as log:
        try:
            staged, landmarks = _compile(Path(scratch), tarball, log)
        except (subprocess.CalledProcessError, KeyError, TypeError, OSError) as error:
            raise UnhealthyError(f"the kernel build failed ({error}): see {log_path}") from error
        version = tarball.name.removeprefix("linux-source-").removesuffix(".tar.xz")
        facts = _Facts(version, round(time.monotonic() - started, 1), landmarks)
        (staged / _FACTS).write_bytes(msgspec.json.encode(facts))
        staged.rename(home)
    log_path.unlink()
    return Kernel(home, facts.version, facts.build_s, facts.landmarks)


def _check_machine(root: Path) -> None:
    machine = os.uname().machine
    if machine != "x86_64":
        raise UnhealthyError(f"the lab's kernel runs on x86_64 only and this is {machine}: use --hosts=INVENTORY.yml")
    missing = missing_tools()
    if missing:
        raise UnhealthyError(f"not installed: {', '.join(missing)}; run `make setup` as root, or install them")
    free = shutil.disk_usage(root).free
    if free < BUILD_BYTES:
        raise UnhealthyError(
            f"{root} has {free >> 20} MiB free and the build needs {BUILD_BYTES >> 20}: make room or set C4BENCH_CACHE"
        )


def _compile(scratch: Path, tarball: Path, log: IO[str]) -> tuple[Path, Landmarks]:
    source, staged = scratch / "source", scratch / "staged"
    source.mkdir()
    staged.mkdir()
    _progress("unpacking the kernel source")
    _run(["tar", "-xJf", str(tarball), "--strip-components=1", "-C", str(source)], log)
    _run(["patch", "--strip=1", "--fuzz=0", f"--directory={source}", f"--input={PATCH}"], log)
    environment = os.environ | _STAMP | {"KCONFIG_ALLCONFIG": str(CONFIG)}
    environment["KCFLAGS"] = f"-ffile-prefix-map={source}=."  # the same kernel wherever it was built
    _run(["make", "-C", str(source), "ARCH=um", "allnoconfig"], log, environment)
    _make_linux(source, log, environment)
    _run(["strip", "-o", str(staged / "linux"), str(source / "linux")], log)
    _run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(staged / "preload.so"), str(PRELOAD)], log)
    return staged, _landmarks(source, log, environment)


def _landmarks(source: Path, log: IO[str], environment: dict[str, str]) -> Landmarks:
    """What the autopsy of a lab needs to know, from a built tree's symbols and its own headers."""
    shutil.copy(LANDMARKS, source / "kernel" / LANDMARKS.name)
    assembly = f"kernel/{LANDMARKS.stem}.s"
    _run(["make", "-C", str(source), "ARCH=um", assembly], log, environment)
    found = re.findall(r"->(\w+) \$(\d+) ", (source / assembly).read_text())
    listed = subprocess.run(["nm", str(source / "linux")], check=True, capture_output=True, text=True).stdout
    address = {line.split()[2]: int(line.split()[0], 16) for line in listed.splitlines() if line.count(" ") == 2}
    offset = {name: int(value) for name, value in found}
    return Landmarks(clock=address["time_travel_time"], first_task=address["init_task"], **offset)


def _run(argv: list[str], log: IO[str], environment: dict[str, str] | None = None) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def _make_linux(source: Path, log: IO[str], environment: dict[str, str]) -> None:
    argv = ["make", "-C", str(source), "ARCH=um", f"-j{os.cpu_count() or 1}", "linux"]
    compiled = 0
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
    ) as make:
        assert make.stdout is not None
        for line in make.stdout:
            log.write(line)
            if line.startswith("  CC"):
                compiled += 1
                _progress(f"building the lab's kernel: {min(99, 100 * compiled // _COMPILED_FILES)} %")
    _progress("", end="\n")
    if make.returncode:
        raise subprocess.CalledProcessError(make.returncode, argv)


def _progress(text: str, end: str = "") -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end=end, file=sys.stderr, flush=True)  # noqa: T201  (a progress line is for the terminal)


def main() -> None:
    """`python -m c4bench.lab.machine.kernel`: what `make setup` calls."""
    try:
        kernel = build()
    except UnhealthyError as error:
        sys.stderr.write(f"c4bench: {error}\n")
        sys.exit(error.exit_code)
    print(f"kernel {kernel.version}: {kernel.program} (built in {kernel.build_s:g} s)")  # noqa: T201


if __name__ == "__main__":
    main()
