"""Provenance of a run: command, code, seed, backend and environment, enough to repeat it."""

import hashlib
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

import msgspec

import c4bench

_CPUINFO = Path("/proc/cpuinfo")
_RDMA_CORE = "libibverbs1"  # the package of rdma-core that every process with a NIC loads
# CPU flags by which the C library, numpy and OpenBLAS select code paths; names as in /proc/cpuinfo.
_CHOSEN_BY = re.compile(r"(amx|avx|bmi|fma|sse|ssse|xsave)\w*|abm|erms|f16c|fsrm|movbe|popcnt|rtm")
_LISTED = 4


class Environment(msgspec.Struct, frozen=True):
    """What was installed on the machine that started the run, and what its processor can do.

    `packages` are the Python distributions of the environment, c4bench itself left out. `kernel` is the version of the
    lab's kernel, `kernel_build` the folder of its build with the SHA-256 of its program, and `lab_mode` how it takes
    hold of its guests (`seccomp` or `ptrace`); all three are empty on real hosts. `rdma_core` is empty where dpkg does
    not know it, `processor` where it is not an x86. All is empty in runs of before this was recorded.
    """

    python: str = ""
    packages: dict[str, str] = {}
    kernel: str = ""
    kernel_build: str = ""
    lab_mode: str = ""
    rdma_core: str = ""
    architecture: str = ""
    processor: tuple[str, ...] = ()

    @property
    def packages_digest(self) -> str:
        """The SHA-256 of a line `name==version` for each package, by sorted name."""
        lines = (f"{name}=={version}\n" for name, version in sorted(self.packages.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def gather(kernel: str = "", kernel_build: str = "", lab_mode: str = "") -> Environment:
    """Read the environment of this process and machine."""
    return Environment(
        python=platform.python_version(),
        packages=_packages(),
        kernel=kernel,
        kernel_build=kernel_build,
        lab_mode=lab_mode,
        rdma_core=_rdma_core(),
        architecture=platform.machine(),
        processor=chosen_by(_CPUINFO.read_text()) if _CPUINFO.exists() else (),
    )


def chosen_by(cpuinfo: str) -> tuple[str, ...]:
    """The CPU flags of the first processor in `cpuinfo` by which libraries select code paths, sorted."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(filter(_CHOSEN_BY.fullmatch, flags[1].split()))) if flags else ()


def differences(then: Environment, now: Environment) -> str:
    """List the relevant differences in one line; empty if figures of both environments compare.

    The build of the kernel does not count: it is made from the version's source by c4bench's own code.
    """
    if not then.python or not now.python:
        return "" if then == now else "the environment was not recorded"
    changes = [
        f"{name} {old or 'none'}, now {new or 'none'}"
        for name, old, new in (*_facts(then, now), *_versions(then, now))
        if old != new
    ]
    more = [f"{len(changes) - _LISTED} more"] if len(changes) > _LISTED else []
    return "; ".join([*changes[:_LISTED], *more])


def _facts(then: Environment, now: Environment) -> Iterator[tuple[str, str, str]]:
    yield "kernel", then.kernel, now.kernel
    yield "lab mode", then.lab_mode, now.lab_mode
    yield "Python", then.python, now.python
    yield "rdma-core", then.rdma_core, now.rdma_core
    yield "architecture", then.architecture, now.architecture
    for feature in sorted({*then.processor, *now.processor}):
        old, new = ("present" if feature in environment.processor else "" for environment in (then, now))
        yield f"processor's {feature}", old, new


def _versions(then: Environment, now: Environment) -> Iterator[tuple[str, str, str]]:
    for name in sorted(then.packages.keys() | now.packages.keys()):
        yield name, then.packages.get(name, ""), now.packages.get(name, "")


@cache
def _packages() -> dict[str, str]:
    described = [distribution.metadata for distribution in metadata.distributions()]
    packages = {_normal(one["Name"]): one["Version"] for one in described}
    packages.pop("c4bench", None)
    return packages


def _normal(name: str) -> str:
    """Normalise a distribution name as the lock file does (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _rdma_core() -> str:
    command = ["dpkg-query", "-W", "-f=${Version}", _RDMA_CORE]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


class Provenance(msgspec.Struct, frozen=True):
    """The content of `run.json`.

    `command` is the command line word by word; `inventory_digest` is the SHA-256 of the inventory (empty for the lab);
    `git_commit` is empty outside a checkout. `scenarios` counts the scenarios of a run that has ended by their outcome,
    and `skips` those that were skipped by their reason.
    """

    name: str
    started_at: str
    version: str
    git_commit: str
    git_dirty: bool
    platform: str
    command: tuple[str, ...]
    seed: int
    backend: str
    topology: str
    clock: str
    inventory_digest: str = ""
    environment: Environment = Environment()
    scenarios: dict[str, int] = {}
    skips: dict[str, int] = {}


class Facts(TypedDict):
    """What only the program that starts a run knows of it; what a lab's kernel is, as `Environment` has it."""

    command: Sequence[str]
    seed: int
    backend: str
    topology: str
    clock: str
    inventory_digest: NotRequired[str]
    kernel: NotRequired[str]
    kernel_build: NotRequired[str]
    lab_mode: NotRequired[str]


def collect(*, name: str, started_at: str, **facts: Unpack[Facts]) -> Provenance:
    """Collect provenance: the caller's facts, the machine, the environment and the state of the checkout."""
    commit, dirty = _checkout(Path(c4bench.__file__).parent)
    environment = gather(facts.get("kernel", ""), facts.get("kernel_build", ""), facts.get("lab_mode", ""))
    return Provenance(
        name=name,
        started_at=started_at,
        version=c4bench.__version__,
        git_commit=commit,
        git_dirty=dirty,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        command=tuple(facts["command"]),
        seed=facts["seed"],
        backend=facts["backend"],
        topology=facts["topology"],
        clock=facts["clock"],
        inventory_digest=facts.get("inventory_digest", ""),
        environment=environment,
    )


def _checkout(folder: Path) -> tuple[str, bool]:
    # An installed package may lie inside somebody else's checkout (a virtual environment there): only tracked counts.
    if not _git(folder, "ls-files", "__init__.py"):
        return "", False
    return _git(folder, "rev-parse", "HEAD"), bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *words: str) -> str:
    """What git prints there; empty if git is missing, fails or takes over 10 s."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
