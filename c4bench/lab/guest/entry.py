"""The first program of the lab: mount the overlay, give the machine's directories their names, start the supervisor.

When the kernel starts it, its root is the machine's own file system through hostfs. It moves to an overlay at once, so
that only the directories that the spec calls writable can change. The supervisor, and all that it starts, use the
lab's names.
"""

import os
import sys
from pathlib import Path

import msgspec

from c4bench import namespaces
from c4bench.lab.guest import naming
from c4bench.lab.guest.end import end, failed
from c4bench.lab.guest.naming import hide
from c4bench.lab.places import inside
from c4bench.lab.spec import MACHINE_ROOT, LabSpec

_LOWER_MOUNT = "/mnt"  # present on every system; only a mount point for the overlay


def main(spec_path: str) -> None:
    """Enter the lab described in `spec_path` and become its supervisor. Never returns."""
    try:
        spec = msgspec.json.decode(Path(spec_path).read_bytes(), type=LabSpec)
        enter_overlay(spec)
        supervisor = [spec.python, "-P", "-B", "-m", "c4bench.lab.guest.init", inside(spec_path, spec.places)]
        os.execve(spec.python, supervisor, spec.environment)
    except OSError as error:
        end(Path(spec_path).parent, failed(error))


def enter_overlay(spec: LabSpec) -> None:
    """Make the machine's file system read-only to the lab, under a copy-on-write layer in memory."""
    namespaces.mount("proc", "/proc", "proc")
    namespaces.mount("layers", _LOWER_MOUNT, "tmpfs")
    upper, work, root = (f"{_LOWER_MOUNT}/{name}" for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        Path(directory).mkdir()
    hide(Path(upper), spec.places)
    namespaces.mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    mount_kernel_views(root)
    Path(root + MACHINE_ROOT).mkdir(parents=True)
    namespaces.mount("none", root + MACHINE_ROOT, "hostfs", namespaces.MS_RDONLY, "/")
    os.chroot(root)
    for place in spec.places:
        if place.writable:
            Path(place.machine).mkdir(parents=True, exist_ok=True)
            namespaces.mount("none", place.machine, "hostfs", data=place.machine)
    naming.name(spec.places)
    naming.translate_scripts(spec.places)
    os.chdir(spec.directory)


def mount_kernel_views(root: str) -> None:
    """proc, sys, dev and the memory file systems, under `root`."""
    namespaces.mount("proc", f"{root}/proc", "proc")
    namespaces.mount("sys", f"{root}/sys", "sysfs")
    namespaces.mount("dev", f"{root}/dev", "devtmpfs")
    for path, mode in (("/dev/pts", 0o755), ("/dev/shm", 0o1777)):
        Path(root + path).mkdir(mode=mode, exist_ok=True)
    namespaces.mount("devpts", f"{root}/dev/pts", "devpts", data="newinstance,ptmxmode=0666,mode=620")
    namespaces.bind(f"{root}/dev/pts/ptmx", f"{root}/dev/ptmx")
    namespaces.mount("shm", f"{root}/dev/shm", "tmpfs")
    namespaces.mount("run", f"{root}/run", "tmpfs", data="mode=755")
    namespaces.mount("cgroup", f"{root}/sys/fs/cgroup", "cgroup2")
    for path in ("/run/netns", "/run/c4", "/run/lock", "/run/root", "/run/tmp"):
        Path(root + path).mkdir()


if __name__ == "__main__":
    main(sys.argv[1])
