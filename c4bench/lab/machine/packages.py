"""The distribution's packages that set-up and the lab need, on Debian and its relatives, and its pyverbs.

pyverbs matches the system's libibverbs, and PyPI's does not, so it is made importable in this environment. One is built
for one Python and one libibverbs, so whether it works is found out by importing it in a new process.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from c4bench.errors import UnhealthyError

# Named as in Debian 12 and 13 and Ubuntu 24.04. The kernel's source is fetched, by apt with the archive's keys, and is
# not installed.
NEEDED = (
    *("flex", "bison", "bc", "make", "patch", "gcc", "libc6-dev", "xz-utils", "binutils", "debian-archive-keyring"),
    *("python3-pyverbs", "rdma-core", "ibverbs-providers", "libibverbs-dev"),
    *("iproute2", "openssh-server", "openssh-client", "sudo", "util-linux"),
)
_INSTALL = ("apt-get", "install", "--no-install-recommends")
# An update that reached no archive is a failure, at once.
_UPDATE = ("apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=0")
_INSTALLED = "ok installed"


def missing() -> list[str]:
    """Needed packages that are not installed; none where dpkg does not manage packages, which nobody can tell there."""
    if shutil.which("dpkg-query") is None:
        return []
    argv = ["dpkg-query", "--show", "--showformat=${Package} ${Status}\n", *NEEDED]
    listed = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    have = {line.partition(" ")[0] for line in listed.splitlines() if line.endswith(_INSTALLED)}
    return [name for name in NEEDED if name not in have]


def advice(names: Sequence[str]) -> str:
    """What a user types to install these."""
    return f"as root, run {' '.join((*_INSTALL, *names))}"


def install(names: Sequence[str]) -> None:
    """Install these with apt. Raises UnhealthyError for an ordinary user, and where apt fails."""
    if os.geteuid():
        raise UnhealthyError(f"packages are missing: {advice(names)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    for argv in (_UPDATE, (*_INSTALL, "-y", "-q", *names)):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith(("E: ", "Err:", "W: "))]
            why = said[0] if said else f"exit code {done.returncode}"
            raise UnhealthyError(f"{' '.join(argv[:2])} failed: {why}; mend apt's sources or proxy, or {advice(names)}")


DISTRIBUTION = "/usr/bin/python3"  # the Python that the distribution's pyverbs is for
_IMPORT = "import sys, pyverbs.device; print(pyverbs.__path__[0]); print(sys.implementation.cache_tag)"
_PYVERBS_FIX = "run `c4bench setup`"


@cache
def pyverbs_obstacle() -> str:
    """Why pyverbs cannot be imported here, the last line of Python's error; "" where it can."""
    return _tried(sys.executable)[1]


def require_pyverbs() -> None:
    """Raises UnhealthyError where pyverbs cannot be imported."""
    if pyverbs_obstacle():
        raise UnhealthyError(f"pyverbs cannot be imported ({pyverbs_obstacle()}): {_PYVERBS_FIX}")


def link_pyverbs() -> Path | None:
    """Link the distribution's pyverbs into this environment and return the link; None where pyverbs works already.

    Raises UnhealthyError, and leaves no link, where the distribution has none, or one for another Python, or where
    another pyverbs is in the way.
    """
    if not pyverbs_obstacle():
        return None
    (found, tag), why = _tried(DISTRIBUTION)
    if why:
        raise UnhealthyError(f"{DISTRIBUTION} has no pyverbs ({why}): install python3-pyverbs, then {_PYVERBS_FIX}")
    if tag != sys.implementation.cache_tag:
        raise UnhealthyError(
            f"the distribution's pyverbs is for {tag} and this Python is {sys.implementation.cache_tag}: "
            f"make the environment with {DISTRIBUTION} -m venv"
        )
    place = Path(sysconfig.get_path("purelib")) / "pyverbs"
    if place.exists() and not place.is_symlink():
        raise UnhealthyError(
            f"{place} does not match the system's libibverbs ({pyverbs_obstacle()}): pip uninstall pyverbs"
        )
    try:
        place.unlink(missing_ok=True)
        place.symlink_to(found)
    except OSError as error:
        raise UnhealthyError(f"{place}: {error.strerror}; install c4bench into a virtual environment") from None
    pyverbs_obstacle.cache_clear()
    if pyverbs_obstacle():
        place.unlink()
        raise UnhealthyError(f"the distribution's pyverbs cannot be imported here: {pyverbs_obstacle()}")
    return place


def _tried(python: str) -> tuple[tuple[str, str], str]:
    """((where pyverbs is, which Python it is for), why it cannot be imported) of an interpreter."""
    try:
        done = subprocess.run([python, "-c", _IMPORT], capture_output=True, text=True, check=False)
    except OSError as error:
        return ("", ""), f"{python}: {error.strerror}"
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
        return ("", ""), said[-1] if said else f"exit code {done.returncode}"
    return (said[0], said[1]), ""
