"""The programs of a lab's switches: what this machine must have, and what is copied."""

import os
import shutil
from pathlib import Path

from c4bench.errors import UnhealthyError
from c4bench.lab.machine import packages
from c4bench.lab.topology import SwitchRouting, Topology

# By program, the Debian package; named as in Debian 12 and 13 and Ubuntu 24.04.
_OF_SYSTEM = {"redis-server": "redis-server", "lldpd": "lldpd"}
_OF_BGP = {"/usr/lib/frr/bgpd": "frr"}
# Only lldpd's own user may run it as it is installed. The lab's files keep their machine's owners.
LLDP_CLIENT = Path("/usr/sbin/lldpcli")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def obstacle(topology: Topology) -> str:
    """Why a lab with such switches cannot run on this machine, and what to do; "" where it can."""
    system, bgp = bool(topology.switch_os), topology.routing is SwitchRouting.BGP
    needed = (_OF_SYSTEM if system else {}) | (_OF_BGP if bgp else {})
    absent = [package for program, package in needed.items() if shutil.which(program, path=_PATH) is None]
    if absent:
        return f"this topology's switches need {' and '.join(absent)}: {packages.advice(absent)}"
    if system and not os.access(LLDP_CLIENT, os.R_OK):
        return (
            f"{LLDP_CLIENT} cannot be read: as root, run dpkg-statoverride --update --add root root 0755 {LLDP_CLIENT}"
        )
    return ""


def furnish(topology: Topology, folder: Path) -> str:
    """Where in `folder` a copy of lldpcli is that everybody in the lab may run; "" where its switches need none.

    Raises UnhealthyError with the obstacle.
    """
    if why := obstacle(topology):
        raise UnhealthyError(why)
    if not topology.switch_os:
        return ""
    copy = folder / LLDP_CLIENT.name
    shutil.copyfile(LLDP_CLIENT, copy)
    copy.chmod(0o755)
    return str(copy)
