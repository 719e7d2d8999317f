"""The programs of a lab whose switches have an operating system: what this machine must have, and what is copied."""

import os
import shutil
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import packages

# By program, the Debian package; named as in Debian 12 and 13 and Ubuntu 24.04.
PACKAGES = {"redis-server": "redis-server", "lldpd": "lldpd"}
# Only lldpd's own user may run it as it is installed. The lab's files keep their machine's owners.
LLDP_CLIENT = Path("/usr/sbin/lldpcli")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def obstacle() -> str:
    """Why such a lab cannot run on this machine, and what to do; "" where it can."""
    absent = [package for program, package in PACKAGES.items() if shutil.which(program, path=_PATH) is None]
    if absent:
        return f"switches with an operating system need {' and '.join(absent)}: {packages.advice(absent)}"
    if not os.access(LLDP_CLIENT, os.R_OK):
        return (
            f"{LLDP_CLIENT} cannot be read: as root, run dpkg-statoverride --update --add root root 0755 {LLDP_CLIENT}"
        )
    return ""


def copy_lldp_client(folder: Path) -> Path:
    """Copy lldpcli into `folder`, so that everybody in the lab may run it. Raises UnhealthyError with the obstacle."""
    if why := obstacle():
        raise UnhealthyError(why)
    copy = folder / LLDP_CLIENT.name
    shutil.copyfile(LLDP_CLIENT, copy)
    copy.chmod(0o755)
    return copy
