"""Make a kernel from an unpacked source: patch, configure and compile it, and find its landmarks."""

import os
import re
import shutil
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.lab.machine.autopsy import Landmarks
from c4bench.lab.machine.kernel import versions
from c4bench.lab.machine.kernel.progress import Progress
from c4bench.lab.machine.kernel.recipe import CONFIG, LANDMARKS, PATCH, PRELOAD, STAMP
from c4bench.lab.machine.kernel.steps import StepError, Steps
from c4bench.lab.machine.kernel.versions import Version

# First in PATH, so that two users of one distribution build with the same programs, whatever else they have installed.
_DISTRIBUTION = "/usr/sbin:/usr/bin:/sbin:/bin"
_COMPILED_FILES = 887  # what the configuration compiles, for the progress line only
# The kernel contains its own configuration, which names the versions of these compilers even though it uses none.
_UNUSED = ("RUSTC=none", "BINDGEN=none", "PAHOLE=none")
_SYMBOL = re.compile(r"^(CONFIG_\w+)=(.*)$", re.MULTILINE)


def environment(tree: Path) -> dict[str, str]:
    """The variables that make the built kernel the same for every folder and every user."""
    path = ":".join(filter(None, (_DISTRIBUTION, os.environ.get("PATH"))))
    return {**STAMP, "PATH": path, "KCONFIG_ALLCONFIG": str(CONFIG), "KCFLAGS": f"-ffile-prefix-map={tree}=."}


def build(tree: Path, version: Version, staged: Path, steps: Steps) -> Landmarks:
    """Build kernel and preloaded library into the new folder `staged`. Raises UnhealthyError."""
    staged.mkdir()
    _patch(tree, version, steps)
    make = ["make", "-C", str(tree), "ARCH=um", *_UNUSED]
    steps.run("configuring the kernel", [*make, "allnoconfig"])
    _check_config(tree, version)
    _compile([*make, f"-j{os.cpu_count() or 1}", "linux"], steps)
    steps.run("stripping the kernel", ["strip", "-o", str(staged / "linux"), str(tree / "linux")])
    shared = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(staged / "preload.so"), str(PRELOAD)]
    steps.run(f"compiling {PRELOAD.name}", shared)
    return _landmarks(tree, make, steps)


def _patch(tree: Path, version: Version, steps: Steps) -> None:
    try:
        steps.run("patching", ["patch", "--strip=1", "--fuzz=0", f"--directory={tree}", f"--input={PATCH}"])
    except StepError as error:
        raise UnhealthyError(
            f"{PATCH.name} does not fit Linux {version} ({error.reason}): {versions.advice()}"
        ) from None


def _check_config(tree: Path, version: Version) -> None:
    gone = vanished(CONFIG.read_text(), (tree / ".config").read_text())
    if gone:
        raise UnhealthyError(
            f"Linux {version} does not take {', '.join(gone)} of {CONFIG.name}: correct it, or {versions.advice()}"
        )


def vanished(wanted: str, configured: str) -> list[str]:
    """The symbols of a configuration that the resulting one lacks, or has with another value."""
    got = dict(_SYMBOL.findall(configured))
    return [name for name, value in _SYMBOL.findall(wanted) if got.get(name) != value]


def _compile(argv: list[str], steps: Steps) -> None:
    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        compiled += line.startswith("  CC ")
        progress.show(0.99 * compiled / _COMPILED_FILES if compiled < _COMPILED_FILES else 0.99)

    with Progress("building the lab's kernel") as progress:
        steps.run("building the lab's kernel", argv, count)


def _landmarks(tree: Path, make: list[str], steps: Steps) -> Landmarks:
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
        raise UnhealthyError(f"the built kernel lacks a landmark ({error}): {versions.advice()}") from None
