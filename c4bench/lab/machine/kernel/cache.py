"""The kernels that have been built: where they are, and which of them the lab uses."""

import hashlib
import os
from pathlib import Path

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import recipe, source

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
    return cache_root() / f"kernel-{recipe.key()}-{digest}"


def identity(origin: Path) -> str:
    """A source's identity, which is saved with its kernel."""
    return f"{origin.name} {origin.stat().st_size}"


def find() -> Kernel | None:
    """The built kernel that a lab uses, or None: that of the given source, else the best one.

    A tested version is better than others, then a newer one. This never uses the network.
    """
    given = source.given()
    if given:
        return load(home_of(given)) if given.is_file() else None
    homes = sorted(cache_root().glob(f"kernel-{recipe.key()}-*/"))
    built = [kernel for kernel in map(load, homes) if kernel]
    return max(built, key=_preference, default=None)


def _preference(kernel: Kernel) -> tuple[bool, recipe.Version]:
    return recipe.preference(recipe.parse(kernel.version) or recipe.OLDEST)


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
