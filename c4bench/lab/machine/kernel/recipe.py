"""What the lab's kernel is built from besides its source; the key of a cached kernel covers all of it."""

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from c4bench.errors import UnhealthyError

_HERE = Path(__file__).parents[1]
CONFIG = _HERE / "kernel.config"
PATCH = _HERE / "kernel.patch"
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


def key() -> str:
    """A digest of the recipe, which changes with any part of it."""
    digest = hashlib.sha256(f"{_REVISION} {sorted(STAMP.items())}".encode())
    for part in (CONFIG, PATCH, PRELOAD, LANDMARKS):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:12]


class Version(NamedTuple):
    """A release of Linux; a name without a patch level, such as `linux-source-7.3`, has 0."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


OLDEST = Version(7, 2)
TESTED = (Version(7, 3, 4),)  # `make test` passed on these


def parse(text: str) -> Version | None:
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
        f"set C4BENCH_KERNEL_SOURCE to a linux-source-{TESTED[-1].major}.{TESTED[-1].minor} package "
        "(.deb) or its .tar.xz"
    )
