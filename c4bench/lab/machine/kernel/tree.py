"""Unpack a kernel source, and read from it its version and whether the lab can be built from it."""

import re
import sys
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.kernel import recipe
from c4bench.lab.machine.kernel.recipe import Version
from c4bench.lab.machine.kernel.steps import BuildSteps, ProgressLine, StepError

_NEEDED = ("Makefile", "arch/um/Makefile", "arch/x86/um/Makefile")
# Half of the source's bytes are in files of drivers and tools that a user-mode kernel does not use.
_LEFT_OUT = (
    "drivers/gpu/*.[ch]",
    "drivers/media/*.[ch]",
    "sound/*.[ch]",
    "tools/perf/*",
    "tools/testing/*",
    "Documentation/*.rst",
)
_RECORDS, _RECORD_BYTES = 1000, 10240  # tar reports its progress this often


def tarball_of(source: Path, folder: Path, steps: BuildSteps) -> Path:
    """The source's .tar.xz: `source` itself, or the one inside a Debian package, unpacked into `folder`."""
    if source.suffix != ".deb":
        return source
    try:
        steps.run(f"unpacking {source}", ["dpkg-deb", "--extract", str(source), str(folder)])
    except StepError as error:
        raise _damaged(source, error) from None
    tarballs = sorted(folder.glob("usr/src/linux-source-*.tar.xz"))
    if not tarballs:
        raise UnhealthyError(f"{source} has no linux-source-*.tar.xz in it: {recipe.advice()}")
    return tarballs[0]


def unpack(tarball: Path, folder: Path, steps: BuildSteps) -> Version:
    """Unpack the source into a new `folder`; return its version. Raises UnhealthyError if it cannot be used."""
    folder.mkdir()
    what = "unpacking the kernel source"
    argv = [
        *("tar", "--extract", f"--file={tarball}", "--use-compress-program=xz --threads=0"),
        *("--strip-components=1", f"--directory={folder}", f"--checkpoint={_RECORDS}"),
        *(f"--exclude=*/{pattern}" for pattern in _LEFT_OUT),
    ]
    try:
        with ProgressLine(what) as progress:
            size = _size(steps.run(what, ["xz", "--robot", "--list", str(tarball)]))
            steps.run(what, argv, lambda line: progress.show(_done(line) / size))
    except StepError as error:
        raise _damaged(tarball, error) from None
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        raise UnhealthyError(f"{tarball} is not a Linux source for x86-64: it has no {missing[0]}; {recipe.advice()}")
    version = _version(folder / "Makefile")
    if version is None:
        raise UnhealthyError(f"{tarball} is not a Linux source: its Makefile has no version; {recipe.advice()}")
    return version


def _size(listed: str) -> int:
    """Uncompressed bytes of a file, from the line of totals that xz prints."""
    totals = re.search(r"^totals\t\d+\t\d+\t\d+\t(\d+)", listed, re.MULTILINE)
    return int(totals[1]) if totals else sys.maxsize


def _done(line: str) -> int:
    """Bytes that tar has read, from a line of its checkpoints."""
    checkpoint = re.search(r"Read checkpoint (\d+)", line)
    return int(checkpoint[1]) * _RECORD_BYTES if checkpoint else 0


def _version(makefile: Path) -> Version | None:
    numbers = dict(re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) *= *(\d+)$", makefile.read_text(), re.MULTILINE))
    if len(numbers) != 3:
        return None
    return Version(*(int(numbers[name]) for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL")))


def _damaged(source: Path, error: StepError) -> UnhealthyError:
    return UnhealthyError(f"{source} is cut or damaged ({error.reason}): get it again, or {recipe.advice()}")
