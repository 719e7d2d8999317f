"""The distribution's packages that set-up and the lab need, on Debian and its relatives."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from c4bench.errors import UnhealthyError

# Named as in Debian 12 and 13 and Ubuntu 24.04. The kernel's source is fetched, by apt with the archive's keys, and is
# not installed.
NEEDED = (
    *("flex", "bison", "bc", "make", "patch", "gcc", "libc6-dev", "xz-utils", "binutils", "debian-archive-keyring"),
    *("python3-pyverbs", "rdma-core", "ibverbs-providers"),
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
