"""How the injector becomes root: by the sudo rule that playbooks/deploy.yml installs for this one command.

The caller chooses all arguments of a command that runs as root. So no argument may lead to a file of the caller's:
names that become part of a path are checked, and the code is where only root can change it.
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from c4bench.decoding import whole_number
from c4bench.errors import UnhealthyError, UsageError

_TIMEOUT_S = 20.0
# Whoever logs in gets this number from PAM (pam_loginuid), and the kernel keeps it through sudo and su.
_LOGIN_USER = Path("/proc/self/loginuid")
_NO_LOGIN = 2**32 - 1
# The numbers of callers, as programs that make root of a user set them for what they start.
_CALLERS = ("SUDO_UID", "PKEXEC_UID")
UNKNOWN = -1


def caller() -> int:
    """The user id of whoever calls, 0 for root by login; `UNKNOWN` where it is said, and is not a number."""
    if os.geteuid() != 0:
        return os.geteuid()
    users = [os.environ[name] for name in _CALLERS if os.environ.get(name)]
    with suppress(FileNotFoundError):  # a kernel without audit
        users.append(_LOGIN_USER.read_text())
    known = [whole_number(user) if user.strip().isdecimal() else UNKNOWN for user in users]
    return next((user for user in known if user not in {0, _NO_LOGIN}), 0)


def become_root(arguments: Sequence[str], *, needed: bool) -> None:
    """Run again as root with these arguments. Returns if we are root, or if root is neither `needed` nor permitted.

    Raises UnhealthyError that says what is missing and what to do.
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
    """The command that the rule permits, beside the Python of the agent's virtual environment."""
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
    """Return `name` if it is safe as part of a path. Raises UsageError for one that could leave its folder."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} is not the name of a {what}; it may not begin with a dot or contain a slash")
    return name
