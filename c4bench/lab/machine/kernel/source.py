"""Where the kernel's source comes from: given, installed, fetched before, or fetched now."""

import os
from collections.abc import Iterable
from pathlib import Path

from c4bench.errors import UsageError
from c4bench.lab.machine.kernel import archive, recipe
from c4bench.lab.machine.kernel.recipe import OLDEST, Version

VARIABLE = "C4BENCH_KERNEL_SOURCE"
INSTALLED = Path("/usr/src")
_KINDS = (".tar.xz", ".deb")


def given() -> Path | None:
    """The source that the user names, whether it is there or not."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else None


def at_hand(root: Path, installed: Path = INSTALLED) -> Path | None:
    """The source that needs no network: given, installed, or fetched into the cache `root` before; None for none.

    Raises UsageError for a given one that does not exist or whose name is not that of a source.
    """
    chosen = given()
    if chosen:
        return _checked(chosen)
    by_package = {path: recipe.parse(path.name) for path in installed.glob("linux-source-*.tar.xz")}
    by_download = {path: recipe.parse(path.parent.name) for path in archive.fetched(root)}
    return best(by_package.items()) or best(by_download.items())


def best(sources: Iterable[tuple[Path, Version | None]]) -> Path | None:
    """The best of these sources, given with their versions; None where all are too old."""
    fit = [(recipe.preference(version), path) for path, version in sources if version and version >= OLDEST]
    return max(fit)[1] if fit else None


def obtain(root: Path) -> Path:
    """The source to build from, fetched into the cache `root` where none is at hand. Raises UnhealthyError."""
    return at_hand(root) or archive.fetch(root)


def _checked(path: Path) -> Path:
    if not path.name.endswith(_KINDS):
        raise UsageError(f"{VARIABLE}={path}: its name ends in none of {', '.join(_KINDS)}; {recipe.advice()}")
    if not path.is_file():
        raise UsageError(f"{VARIABLE}={path}: no such file; correct or unset it")
    version = recipe.parse(path.name)
    if version:
        recipe.refuse_old(version, str(path))
    return path
