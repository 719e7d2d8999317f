"""How this command comes to be root's: by the one sudo rule that playbooks/deploy.yml installs, for it alone.

Whoever may call it as root chooses every word that it is given. So no word may lead it to a file of the caller's: names
that become part of a path are checked, and its code lies where only root can change it.
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from c4bench.errors import UnhealthyError, UsageError

_TIMEOUT_S = 20.0


def become_root(arguments: Sequence[str], *, needed: bool) -> None:
    """Go on as root, with these arguments; returns where we are root already, or need not be and may not.

    Raises UnhealthyError that says what is missing and the mend.
    """
    if os.geteuid() == 0:
        return
    command = command_in(Path(sys.prefix))
    obstacle = _missing(command)
    if not obstacle:
        os.execvp("sudo", ["sudo", "-n", str(command), *arguments])
    if needed:
        raise UnhealthyError(f"faults need root on the host, and {obstacle}")


def command_in(environment: Path) -> Path:
    """The command that the rule names: beside the Python of the agent's virtual environment."""
    return environment.resolve() / "bin" / "inject"


def _missing(command: Path) -> str:
    user = pwd.getpwuid(os.geteuid()).pw_name
    if not command.is_file():
        return f"there is no {command} for {user} to call by sudo; deploy (playbooks/deploy.yml), or log in as root"
    if shutil.which("sudo") is None:
        return "sudo is not installed; install it, or log in as root"
    asked = subprocess.run(("sudo", "-n", "-l", str(command)), capture_output=True, check=False, timeout=_TIMEOUT_S)
    if asked.returncode == 0:
        return ""
    return f"{user} may not call {command} by sudo; deploy again with -e c4_operators={user}, or log in as root"


def checked_name(what: str, name: str) -> str:
    """`name`, fit to be part of a path. Raises UsageError for one that could lead out of its folder."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} is no name of a {what}; it may not begin with a dot or have a slash in it")
    return name
