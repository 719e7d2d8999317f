"""Hide the state of the machine's own c4bench from the lab, whose root is the machine's under a layer in memory.

Hidden names are always the same, whether the machine has them or not: Linux draws a random number for each file that is
made in memory, and a lab's random numbers must not depend on the machine.
"""

import os
import stat
from collections.abc import Collection
from pathlib import Path

from c4bench.lab.places import Place

# What playbooks/deploy.yml and the injector make on a host. The lab's home, /run and /dev/shm are its own anyway.
HIDDEN = (
    "/var/lib/c4bench",
    "/etc/c4bench",
    "/opt/c4bench",
    "/etc/sudoers.d/c4bench",
    "/etc/tmpfiles.d/c4bench.conf",
    "/etc/systemd/system/c4bench.service",
    "/etc/systemd/system/c4bench-heal.service",
)


def hide(upper: Path, places: Collection[Place]) -> None:
    """Put whiteouts into `upper`, the upper layer of an overlay that is mounted after this.

    What the lab needs of the machine is not hidden: our own environment may be installed there.
    """
    needed = [Path(place.machine) for place in places if not place.writable]
    for name in HIDDEN:
        if not any(path.is_relative_to(name) for path in needed):
            whiteout = upper / name.lstrip("/")
            whiteout.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(whiteout, stat.S_IFCHR, os.makedev(0, 0))
