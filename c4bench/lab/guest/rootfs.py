"""A lab host's root file system: an overlay over the machine's, with its own state, devices and configuration."""

import os
import shutil
from pathlib import Path

import msgspec
import yaml

from c4bench import namespaces
from c4bench.lab.guest import naming, power
from c4bench.lab.guest.hiding import hide
from c4bench.lab.guest.provision import AGENT_ID, SHARED, SSH, permit
from c4bench.lab.spec import MACHINE_ROOT, LabSpec
from c4bench.lab.topology import MANAGEMENT_GATEWAY
from c4bench.model.fabric import Host

_LOGS_SIZE = "32m"  # small, so that a fault can fill it
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_VERBS = Path("/sys/class/infiniband_verbs")
_SSHD_CONFIG = """\
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
Subsystem sftp internal-sftp
"""
_ACCOUNTS = """\
root:x:0:0:root:/run/root:/bin/bash
sshd:x:100:65534::/run/sshd:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_AGENT_ACCOUNT = f"c4bench:x:{AGENT_ID}:{AGENT_ID}::/nonexistent:/usr/sbin/nologin\n"
_SHADOW = "root:*:19700:0:99999:7:::\nsshd:*:19700::::::\n"  # no password is accepted, but keys are


def enter(host: Host, spec: LabSpec) -> None:
    """Enter the host's own root: empty state directories, and only the host's devices in /dev and /sys.

    A sysfs mounted in a network namespace shows the interfaces and RDMA devices of that namespace only.
    """
    namespaces.mount("none", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    base = Path("/run/c4/hosts") / host.name
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    namespaces.mount("layers", str(base), "tmpfs")
    upper, work, root = (base / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
    hide(upper, spec.places)
    data = f"lowerdir={MACHINE_ROOT},upperdir={upper},workdir={work}"
    namespaces.mount("overlay", str(root), "overlay", data=data)
    _mount_views(host, root)
    _write_files(host, spec, root)
    os.chroot(root)
    naming.name([place for place in spec.places if not place.writable])
    os.chdir("/")


def _mount_views(host: Host, root: Path) -> None:
    namespaces.mount("proc", f"{root}/proc", "proc")
    namespaces.mount("sys", f"{root}/sys", "sysfs")
    namespaces.bind("/sys/fs/cgroup", f"{root}/sys/fs/cgroup")
    for path, data in (
        ("run", "mode=755"),
        ("dev", "mode=755"),
        ("var/log", f"mode=755,size={_LOGS_SIZE}"),
    ):
        namespaces.mount(path, f"{root}/{path}", "tmpfs", data=data)
    for directory in ("dev/pts", "dev/shm", "dev/infiniband", "run/root", "run/sshd", "run/lock"):
        (root / directory).mkdir()
    (root / "run/tmp").mkdir()
    (root / "run/tmp").chmod(0o1777)
    namespaces.mount("devpts", f"{root}/dev/pts", "devpts", data="newinstance,ptmxmode=0666,mode=620")
    namespaces.mount("shm", f"{root}/dev/shm", "tmpfs")
    shared = root / SHARED.relative_to("/")
    shared.mkdir(parents=True)
    namespaces.bind(str(SHARED), str(shared))
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    (root / "dev/fd").symlink_to("/proc/self/fd")
    verbs = _verbs_devices(host)
    for name in (*_DEVICES, *(f"infiniband/{device}" for device in verbs)):
        _bind_file(f"/dev/{name}", root / "dev" / name)
    _bind_file(str(power.trigger(host.name)), root / "run/sysrq-trigger")
    namespaces.bind(str(power.panic(host.name)), f"{root}/proc/sys/kernel/panic")
    _show_verbs_devices(verbs, root)


def _bind_file(source: str, target: Path) -> None:
    target.touch()
    namespaces.bind(source, str(target))


def _verbs_devices(host: Host) -> list[str]:
    own = {nic.device for nic in host.nics}
    return [entry.name for entry in sorted(_VERBS.glob("uverbs*")) if (entry / "ibdev").read_text().strip() in own]


def _show_verbs_devices(names: list[str], root: Path) -> None:
    """Hide all others from /sys: of RDMA's classes only this one ignores network namespaces."""
    targets = {name: (_VERBS / name).readlink() for name in names}
    view = root / _VERBS.relative_to("/")
    namespaces.mount("verbs", str(view), "tmpfs", data="mode=755")
    for name, target in targets.items():
        (view / name).symlink_to(target)


def _write_files(host: Host, spec: LabSpec, root: Path) -> None:
    etc = root / "etc"
    (etc / "hostname").write_text(f"{host.name}\n")
    names = "".join(f"{known.address} {known.name}\n" for known in spec.topology.hosts)
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (etc / "passwd").write_text(_ACCOUNTS + (_AGENT_ACCOUNT if spec.agents else ""))
    (etc / "shadow").unlink(missing_ok=True)
    (etc / "shadow").write_text(_SHADOW)
    ssh = etc / "ssh"
    shutil.rmtree(ssh, ignore_errors=True)
    ssh.mkdir()
    (ssh / "sshd_config").write_text(_SSHD_CONFIG)
    shutil.copy(SSH / "id.pub", ssh / "authorized_keys")
    shutil.copy(SSH / "host_key", ssh / "host_key")
    if spec.agents:
        _provision_agent(host, Path(spec.trust), etc / "c4bench")
    permit([host], (), etc / "c4bench")


def _provision_agent(host: Host, trust: Path, target: Path) -> None:
    """Install the agent's certificate and its master's address, as an image with the agent would have them."""
    target.mkdir()
    for name, source in (("ca.pem", "ca.pem"), ("cert.pem", f"{host.name}.pem"), ("key.pem", f"{host.name}.key")):
        shutil.copy(trust / source, target / name)
    (target / "key.pem").chmod(0o640)
    os.chown(target / "key.pem", 0, AGENT_ID)
    config = {
        "name": host.name,
        "master": MANAGEMENT_GATEWAY,
        "trust": "/etc/c4bench",
        "nics": [msgspec.to_builtins(nic) for nic in host.nics],
        "user": "c4bench",
        # The agent's code is in a checkout that other users may not be able to read.
        "capabilities": ["net_raw", "dac_read_search"],
    }
    (target / "agent.yml").write_text(yaml.safe_dump(config, sort_keys=False))
