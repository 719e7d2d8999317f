"""Give the machine's directories their names in the lab, and make Python and its scripts use them.

This writes to the environment, which therefore has its own layer in memory. The root's overlay would first copy each
folder above it into memory, and Linux draws a random number for each new file there: all later random numbers would
depend on how deep the environment's folder is.

Hide the state of the machine's own c4bench from the lab, whose root is the machine's under a layer in memory. Hidden
names are always the same, whether the machine has them or not: Linux draws a random number for each file that is made
in memory, and a lab's random numbers must not depend on the machine.
"""

import os
import stat
import sysconfig
from collections.abc import Collection
from pathlib import Path

from c4bench import namespaces
from c4bench.lab.places import CODE, ENVIRONMENT, NAMES, Place, inside

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


_SCRIPT_BYTES_MAX = 1 << 16


def name(places: Collection[Place]) -> None:
    """Mount `places` under their names, in a root whose changes nobody else sees. Changes the working directory."""
    Path(NAMES).mkdir(exist_ok=True)
    namespaces.mount("names", NAMES, "tmpfs", data="mode=755")
    for place in places:
        Path(place.lab).mkdir()
        if place.lab == ENVIRONMENT:
            _layer(place)
        else:
            namespaces.bind(place.machine, place.lab, recursive=True)
    if CODE in {place.lab for place in places}:
        # Python finds a checkout by a file of pip's with its name on the machine; this file is read before that one.
        packages = inside(sysconfig.get_path("purelib"), places)
        Path(packages, "0-c4bench.pth").write_text(f"{CODE}\n")


def _layer(place: Place) -> None:
    """Mount a directory whose changes stay in memory."""
    upper, work = (f"{place.lab}.{kind}" for kind in ("upper", "work"))
    Path(upper).mkdir()
    Path(work).mkdir()
    os.chdir(place.machine)  # its name may have characters that separate options
    namespaces.mount("overlay", place.lab, "overlay", data=f"lowerdir=.,upperdir={upper},workdir={work}")


def translate_scripts(places: Collection[Place]) -> None:
    """Replace the interpreter's name on the machine by its name in the lab in the environment's scripts."""
    scripts = Path(ENVIRONMENT, "bin")
    for script in sorted(scripts.iterdir()) if scripts.is_dir() else ():
        if script.is_symlink() or script.stat().st_size > _SCRIPT_BYTES_MAX:
            continue
        text = script.read_text(errors="surrogateescape")
        script.write_text(inside(text, places), errors="surrogateescape")
