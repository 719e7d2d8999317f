"""Gives the machine's directories their names in the lab, and has Python and its scripts go by them.

The environment, which is written to for that, gets a layer in memory of its own. Through the overlay that all lies on,
each folder above it would be copied into memory first, and Linux draws a random number for each new file there: how
deep the environment lies would decide all that is drawn from then on.
"""

import os
import sysconfig
from collections.abc import Collection
from pathlib import Path

from c4bench import namespaces
from c4bench.lab.places import CODE, ENVIRONMENT, NAMES, Place, inside

_SCRIPT_BYTES_MAX = 1 << 16


def name(places: Collection[Place]) -> None:
    """Show `places` under their names, in a root where changes are nobody else's. Leaves the working directory."""
    Path(NAMES).mkdir(exist_ok=True)
    namespaces.mount("names", NAMES, "tmpfs", data="mode=755")
    for place in places:
        Path(place.lab).mkdir()
        if place.lab == ENVIRONMENT:
            _layer(place)
        else:
            namespaces.bind(place.machine, place.lab, recursive=True)
    if CODE in {place.lab for place in places}:
        # A checkout is found by a file that pip has written, under its name on the machine: this one is read before.
        packages = inside(sysconfig.get_path("purelib"), places)
        Path(packages, "0-c4bench.pth").write_text(f"{CODE}\n")


def _layer(place: Place) -> None:
    """Show a directory with whatever is changed of it in memory."""
    upper, work = (f"{place.lab}.{kind}" for kind in ("upper", "work"))
    Path(upper).mkdir()
    Path(work).mkdir()
    os.chdir(place.machine)  # its name may have characters that separate options
    namespaces.mount("overlay", place.lab, "overlay", data=f"lowerdir=.,upperdir={upper},workdir={work}")


def translate_scripts(places: Collection[Place]) -> None:
    """Have the environment's scripts run by its interpreter under the lab's name; they name the machine's."""
    scripts = Path(ENVIRONMENT, "bin")
    for script in sorted(scripts.iterdir()) if scripts.is_dir() else ():
        if script.is_symlink() or script.stat().st_size > _SCRIPT_BYTES_MAX:
            continue
        text = script.read_text(errors="surrogateescape")
        script.write_text(inside(text, places), errors="surrogateescape")
