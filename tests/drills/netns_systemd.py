"""systemd as a namespace host's first process, with its own cgroup and devices, and no service of the machine's.

It is the distribution's systemd, but what it starts is chosen here: a unit of the machine that loads modules or sets
kernel variables would do so for the machine.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from c4bench import namespaces

PROGRAM = "/lib/systemd/systemd"
_UNITS = Path("/lib/systemd/system")
_CHOSEN = (
    *(f"{name}.target" for name in ("sysinit", "basic", "multi-user", "shutdown", "umount", "final", "local-fs")),
    *(f"{name}.target" for name in ("network", "network-online", "sockets", "timers", "paths", "slices")),
    *(f"systemd-journald{end}" for end in (".service", ".socket", "-dev-log.socket")),
)
_HIDDEN = ("/lib/systemd/system-generators", "/etc/systemd/system-generators", "/usr/local/lib/systemd")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SSHD = """\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/usr/sbin/sshd -D -f /root/sshd_config
"""


def missing() -> str:
    """Why systemd cannot be a host's first process here; "" when it can."""
    if not Path(PROGRAM).exists() or shutil.which("systemctl") is None:
        return "not installed: systemd"
    try:
        remove_group(group := make_group("trial"))
    except (OSError, StopIteration) as error:
        return f"no cgroup of version 2 to make one in: {error}"
    return "" if not group.exists() else f"{group} cannot be removed"


def make_group(name: str) -> Path:
    """A control group for a host. Raises OSError, and StopIteration where no hierarchy of version 2 is mounted."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    group = Path(next(words[1] for words in mounts if words[2] == "cgroup2")) / f"c4bench-{os.getpid()}-{name}"
    group.mkdir()
    return group


def remove_group(group: Path) -> None:
    """And all that systemd has made in it."""
    for path, _, _ in os.walk(group, topdown=False):
        with suppress(FileNotFoundError):
            Path(path).rmdir()


def enter_group(group: Path) -> None:
    """The calling process, and what it starts from now on, has `group` as its root of groups."""
    (group / "cgroup.procs").write_text("0")
    namespaces.unshare(namespaces.CLONE_NEWCGROUP)


def furnish(root: Path, own: Path, name: str) -> None:
    """Make `root` one that systemd can begin in; what is written to its folders of units is found below `own`."""
    for folder in (own / "etc/systemd/system", own / "lib/systemd/system", own / "empty"):
        folder.mkdir(parents=True, exist_ok=True)
    for unit in _CHOSEN:
        shutil.copy(_UNITS / unit, own / "lib/systemd/system")
    (own / "lib/systemd/system/drill-sshd.service").write_text(_SSHD)
    wants = own / "lib/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    for unit in ("drill-sshd.service", "systemd-journald.service"):
        (wants / unit).unlink(missing_ok=True)
        (wants / unit).symlink_to(f"../{unit}")
    for folder in ("etc/systemd/system", "lib/systemd/system"):
        namespaces.bind(f"{own}/{folder}", f"{root}/{folder}")
    for hidden in _HIDDEN:
        if (place := root / hidden[1:]).is_dir():
            namespaces.bind(f"{own}/empty", str(place))
    (root / "etc/hostname").write_text(f"{name}\n")
    (root / "etc/machine-id").write_text(f"{name.encode().hex():0>32}\n")
    namespaces.mount("sysfs", f"{root}/sys", "sysfs", flags=namespaces.MS_RDONLY)
    namespaces.mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2")
    _lock(f"{root}/proc/sys")


def make_devices(root: Path) -> None:
    """A /dev with nothing of the machine's but what holds no state."""
    namespaces.mount("devices", f"{root}/dev", "tmpfs", data="mode=755")
    for name in _DEVICES:
        (root / "dev" / name).touch()
        namespaces.bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name in ("shm", "pts"):
        (root / "dev" / name).mkdir()
    namespaces.mount("devpts", f"{root}/dev/pts", "devpts", data="newinstance,ptmxmode=0666")
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd")):
        (root / "dev" / name).symlink_to(target)


def become() -> None:
    """Go on as systemd; does not return."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    environment = {"container": "c4bench-drill", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    os.execve(PROGRAM, [PROGRAM, "--unit=multi-user.target"], environment)


def _lock(path: str) -> None:
    namespaces.bind(path, path, recursive=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
