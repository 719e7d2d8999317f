"""Make the distribution's pyverbs importable in this environment: it matches the system's libibverbs, PyPI's does not.

A pyverbs is built for one Python and one libibverbs, so whether one works is found out by importing it in a new
process.
"""

import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from c4bench.errors import UnhealthyError

DISTRIBUTION = "/usr/bin/python3"  # the Python that the distribution's pyverbs is for
_IMPORT = "import sys, pyverbs.device; print(pyverbs.__path__[0]); print(sys.implementation.cache_tag)"
FIX = "run `c4bench setup`"


@cache
def obstacle() -> str:
    """Why pyverbs cannot be imported here, the last line of Python's error; "" where it can."""
    return _tried(sys.executable)[1]


def require() -> None:
    """Raises UnhealthyError where pyverbs cannot be imported."""
    if obstacle():
        raise UnhealthyError(f"pyverbs cannot be imported ({obstacle()}): {FIX}")


def link() -> Path | None:
    """Link the distribution's pyverbs into this environment and return the link; None where pyverbs works already.

    Raises UnhealthyError, and leaves no link, where the distribution has none, or one for another Python, or where
    another pyverbs is in the way.
    """
    if not obstacle():
        return None
    (found, tag), why = _tried(DISTRIBUTION)
    if why:
        raise UnhealthyError(f"{DISTRIBUTION} has no pyverbs ({why}): install python3-pyverbs, then {FIX}")
    if tag != sys.implementation.cache_tag:
        raise UnhealthyError(
            f"the distribution's pyverbs is for {tag} and this Python is {sys.implementation.cache_tag}: "
            f"make the environment with {DISTRIBUTION} -m venv"
        )
    place = Path(sysconfig.get_path("purelib")) / "pyverbs"
    if place.exists() and not place.is_symlink():
        raise UnhealthyError(f"{place} does not match the system's libibverbs ({obstacle()}): pip uninstall pyverbs")
    try:
        place.unlink(missing_ok=True)
        place.symlink_to(found)
    except OSError as error:
        raise UnhealthyError(f"{place}: {error.strerror}; install c4bench into a virtual environment") from None
    obstacle.cache_clear()
    if obstacle():
        place.unlink()
        raise UnhealthyError(f"the distribution's pyverbs cannot be imported here: {obstacle()}")
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
