"""Provenance of a run: command, code, seed, backend and environment, enough to repeat it."""

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

import c4bench
from c4bench.record.environment import Environment, gather


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


def collect(
    *,
    name: str,
    started_at: str,
    command: Sequence[str],
    seed: int,
    backend: str,
    topology: str,
    clock: str,
    inventory_digest: str = "",
    kernel: str = "",
    kernel_build: str = "",
    lab_mode: str = "",
) -> Provenance:
    """Collect provenance: the caller's facts, the machine, the environment and the state of the checkout."""
    commit, dirty = _checkout(Path(c4bench.__file__).parent)
    return Provenance(
        name=name,
        started_at=started_at,
        version=c4bench.__version__,
        git_commit=commit,
        git_dirty=dirty,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        command=tuple(command),
        seed=seed,
        backend=backend,
        topology=topology,
        clock=clock,
        inventory_digest=inventory_digest,
        environment=gather(kernel=kernel, kernel_build=kernel_build, lab_mode=lab_mode),
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
