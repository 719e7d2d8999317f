"""What the lab's kernel is built from besides its source, and the kernels that have been built.

The key of a cached kernel covers all of the recipe.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.autopsy import Landmarks

_HERE = Path(__file__).parents[1]
CONFIG = _HERE / "kernel.config"
PATCH = _HERE / "kernel.patch"
# Files that the build adds to the source, by the folder where they belong.
ADDED = {
    _HERE / "sch_pfc.c": "net/sched",
    _HERE / "pfc.h": "include/net",
    _HERE / "rxe_connectx.c": "drivers/infiniband/sw/rxe",
    _HERE / "rxe_connectx.h": "drivers/infiniband/sw/rxe",
    _HERE / "rxe_events.c": "drivers/infiniband/sw/rxe",
    _HERE / "rxe_events.h": "drivers/infiniband/sw/rxe",
}
PRELOAD = _HERE / "preload.c"
LANDMARKS = _HERE / "landmarks.c"
_REVISION = 5  # raised when a change of the build's commands changes the kernel

# The build's own stamp is hashed into the kernel's entropy at boot: pin it, or two machines would replay differently.
STAMP = {
    "KBUILD_BUILD_TIMESTAMP": "2026-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER": "c4bench",
    "KBUILD_BUILD_HOST": "lab",
    "KBUILD_BUILD_VERSION": "1",
}


def recipe_key() -> str:
    """A digest of the recipe, which changes with any part of it."""
    digest = hashlib.sha256(f"{_REVISION} {sorted(STAMP.items())}".encode())
    for part in (CONFIG, PATCH, *ADDED, PRELOAD, LANDMARKS):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:12]


class Version(NamedTuple):
    """A release of Linux; a name without a patch level, such as `linux-source-7.3`, has 0."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


SOURCE_VARIABLE = "C4BENCH_KERNEL_SOURCE"


def given_source() -> Path | None:
    """The source that the user names, whether it is there or not."""
    named = os.environ.get(SOURCE_VARIABLE)
    return Path(named).absolute() if named else None


OLDEST = Version(7, 2)
TESTED = (Version(7, 3, 4),)  # `make test` passed on these


def version_in(text: str) -> Version | None:
    """The version that a file name, a Debian version or a release string names first, None where it names none."""
    numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return Version(*(int(part or 0) for part in numbers.groups())) if numbers else None


def preference(version: Version) -> tuple[bool, Version]:
    """Sorts versions: tested before untested, newer before older; the best is the largest."""
    return version in TESTED, version


def refuse_old(version: Version, where: str) -> None:
    """Raises UnhealthyError for a version that is too old for the lab."""
    if version[:2] < OLDEST[:2]:
        raise UnhealthyError(
            f"{where} is Linux {version} and the lab needs {OLDEST.major}.{OLDEST.minor} or later: {advice()}"
        )


def warning(version: Version) -> str:
    """One line about a version that nobody has tested the lab with, "" for a tested one."""
    if version in TESTED:
        return ""
    return f"Linux {version} has not been tested with this release; {', '.join(map(str, TESTED))} has"


def advice() -> str:
    """How to get a source by hand."""
    return (
        f"set {SOURCE_VARIABLE} to a linux-source-{TESTED[-1].major}.{TESTED[-1].minor} package (.deb) or its .tar.xz"
    )


_FACTS = "kernel.json"


class Facts(msgspec.Struct, frozen=True):
    """What is saved with a kernel: Linux' full version, the source it is from, how long the build took.

    `setup_s` is how long the set-up that built it took, None where that was not a set-up from nothing.
    """

    version: str
    source: str
    build_s: float
    landmarks: Landmarks
    setup_s: float | None = None


class Kernel(msgspec.Struct, frozen=True):
    """A built kernel: its folder, how long build and set-up took on the machine's clock, addresses in its memory."""

    home: Path
    version: str
    build_s: float
    landmarks: Landmarks
    setup_s: float | None = None

    @property
    def program(self) -> Path:
        """The kernel, an ordinary program."""
        return self.home / "linux"

    @property
    def build(self) -> str:
        """An identifier of this build: its folder's name, which has recipe and source, and the program's digest."""
        return f"{self.home.name} sha256:{hashlib.sha256(self.program.read_bytes()).hexdigest()}"

    @property
    def preload(self) -> Path:
        """The library preloaded into it, which keeps the machine's randomness and timing out of the lab."""
        return self.home / "preload.so"


def cache_root() -> Path:
    """`$C4BENCH_CACHE`, else the user's cache directory."""
    explicit = os.environ.get("C4BENCH_CACHE")
    if explicit:
        return Path(explicit).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "c4bench"


def home_of(origin: Path) -> Path:
    """Where the kernel of this source is kept."""
    digest = hashlib.sha256(identity(origin).encode()).hexdigest()[:8]
    return cache_root() / f"kernel-{recipe_key()}-{digest}"


def identity(origin: Path) -> str:
    """A source's identity, which is saved with its kernel."""
    return f"{origin.name} {origin.stat().st_size}"


def find() -> Kernel | None:
    """The built kernel that a lab uses, or None: that of the given source, else the best one.

    A tested version is better than others, then a newer one. This never uses the network.
    """
    given = given_source()
    if given:
        return load(home_of(given)) if given.is_file() else None
    homes = sorted(cache_root().glob(f"kernel-{recipe_key()}-*/"))
    built = [kernel for kernel in map(load, homes) if kernel]
    return max(built, key=_preference, default=None)


def _preference(kernel: Kernel) -> tuple[bool, Version]:
    return preference(version_in(kernel.version) or OLDEST)


def require() -> Kernel:
    """The kernel that a lab uses. Raises UnhealthyError, which says how to build it, when it is missing."""
    kernel = find()
    if kernel is None:
        raise UnhealthyError("the lab's kernel is not built: run `c4bench setup`")
    return kernel


def load(home: Path) -> Kernel | None:
    """The kernel in this folder, None where there is none."""
    try:
        facts = msgspec.json.decode((home / _FACTS).read_bytes(), type=Facts)
    except FileNotFoundError:
        return None
    return _kernel(home, facts)


def describe(home: Path, facts: Facts) -> Kernel:
    """Save the facts about the kernel in this folder; only then does the folder count as a kernel."""
    (home / _FACTS).write_bytes(msgspec.json.encode(facts))
    return _kernel(home, facts)


def _kernel(home: Path, facts: Facts) -> Kernel:
    return Kernel(home, facts.version, facts.build_s, facts.landmarks, facts.setup_s)
