"""The first process of the lab: lay the overlay, build the fabric, boot the hosts, run the command, power off.

Started by the kernel as root of nothing yet: its root is the machine's own file system through hostfs. It moves onto an
overlay at once, so that only the directories named in the spec can change.
"""

import ctypes
import os
import signal
import socket
import sys
import termios
import time
from pathlib import Path

import msgspec

from c4bench import namespaces
from c4bench.errors import C4Error
from c4bench.lab.guest.supervisor import Supervisor
from c4bench.lab.spec import RESULT_FILE, LabResult, LabSpec

MACHINE_ROOT = "/run/c4/machine"
_LOWER_MOUNT = "/mnt"  # present on every system; only a place to hang the overlay from
_POWER_OFF = 0x4321FEDC
_SYSLOG_READ_ALL = 3


def main(spec_path: str) -> None:
    """Run the lab described in `spec_path` and end the kernel. Never returns."""
    home = Path(spec_path).parent
    try:
        spec = msgspec.json.decode(Path(spec_path).read_bytes(), type=LabSpec)
        enter_overlay(spec)
        socket.sethostname("c4lab")
        if not spec.interactive:
            pass_bytes_unchanged(1)
        result = Supervisor(spec).run()
    except (C4Error, OSError) as error:
        result = LabResult(exit_code=3, ready_s=0.0, ended_s=time.monotonic(), error=str(error))
    (home / "dmesg.log").write_bytes(kernel_messages())
    (home / RESULT_FILE).write_bytes(msgspec.json.encode(result))
    power_off()


def enter_overlay(spec: LabSpec) -> None:
    """Make the machine's file system read-only to the lab, but for a copy-on-write layer in memory."""
    namespaces.mount("proc", "/proc", "proc")
    namespaces.mount("layers", _LOWER_MOUNT, "tmpfs")
    upper, work, root = (f"{_LOWER_MOUNT}/{name}" for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        Path(directory).mkdir()
    namespaces.mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    mount_kernel_views(root)
    for directory in spec.writable:
        Path(root + directory).mkdir(parents=True, exist_ok=True)
        namespaces.mount("none", root + directory, "hostfs", data=directory)
    Path(root + MACHINE_ROOT).mkdir(parents=True)
    namespaces.mount("none", root + MACHINE_ROOT, "hostfs", namespaces.MS_RDONLY, "/")
    os.chroot(root)
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
    for path in ("/run/netns", "/run/c4", "/run/lock"):
        Path(root + path).mkdir()


def pass_bytes_unchanged(console: int) -> None:
    """The console is a terminal to the kernel and a pipe to us: no carriage returns before newlines."""
    attributes = termios.tcgetattr(console)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(console, termios.TCSANOW, attributes)


def kernel_messages() -> bytes:
    """What the kernel has logged since it booted."""
    buffer = ctypes.create_string_buffer(1 << 18)
    length = ctypes.CDLL(None).klogctl(_SYSLOG_READ_ALL, buffer, len(buffer))
    return buffer.raw[: max(0, length)]


def power_off() -> None:
    """End every process, then the kernel."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(-1, signal.SIGKILL)
    sys.stdout.flush()
    ctypes.CDLL(None).reboot(_POWER_OFF)


if __name__ == "__main__":
    main(sys.argv[1])
