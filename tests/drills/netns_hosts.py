"""Hosts made of namespaces, with real SSH servers: for what needs real SSH and Ansible, but no fabric.

Each host has its own network, mount, process, IPC and hostname namespaces. Its root is an overlay over the machine's
whose upper layer lives in memory, so nothing it does touches the machine, and everything it has written can be listed.
Meanwhile the calling thread is in a new network namespace, which holds the bridge: nothing is left behind,
and nothing of the machine's network is seen.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import netns_systemd
import yaml

import c4bench
from c4bench import namespaces
from c4bench.lab.machine.containment import die_with_parent

NETWORK = "198.18.77"
CONTROLLER = f"{NETWORK}.1"
OPERATOR = "ops"  # an account beside root's that the same key opens
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL", "--")
# tar's exit code where something was written meanwhile.
_CHANGED = 1
_OWN = ("run", "root", "tmp", "opt", "var/log", "dev/shm")
_ON_DISK = ("upper", "own/root", "own/opt", "own/var", "own/etc", "own/lib")
# Rewritten whole whenever a user comes or goes; each has a former version beside it.
_ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid", "/etc/.pwd.lock")
_SSHD = """\
HostKey /root/host_key
AuthorizedKeysFile /run/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
Subsystem sftp internal-sftp
"""


@dataclass
class NetnsHost:
    """A running host; `layers` is where its own files lie, as its init's parent sees them."""

    name: str
    address: str
    process: "subprocess.Popen[str]"
    layers: Path
    group: Path | None = None

    @property
    def _init(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def processes(self) -> list[str]:
        """The command lines of everything that runs on the host, except its init."""
        found = {}
        for entry in Path(f"/proc/{self._init}/root/proc").glob("[0-9]*"):
            words = ""
            with suppress(OSError):  # it may have ended since it was listed
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            if words and entry.name != "1":
                found[int(entry.name)] = words
        return [found[pid] for pid in sorted(found)]

    def files(self) -> set[str]:
        """Every file and folder that the host has made or changed since it exists, except the accounts' files."""
        layers = Path(f"/proc/{self.process.pid}/root{self.layers}")
        own, upper = layers / "own", layers / "upper"
        found = {f"/{path.relative_to(top)}" for top in (own, upper) for path in top.rglob("*")}
        return {path for path in found if path.rstrip("-") not in _ACCOUNTS}

    def accounts(self) -> set[str]:
        """Every user and group, and what else is said of them."""
        root = Path(f"/proc/{self._init}/root")
        return {f"{name}: {line}" for name in _ACCOUNTS for line in _lines(Path(f"{root}{name}"))}

    def end(self) -> None:
        """Kill the host's init, and with it everything on it; nothing where that has been done."""
        if self.process.returncode is not None:
            return
        os.kill(self._init, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
        if self.group:
            netns_systemd.remove_group(self.group)

    def reboot(self) -> None:
        """Cut its power and boot it again: what was on disk is there, what was in memory is not."""
        disk = self.layers.parent / f"{self.name}.tar"
        place = Path(f"/proc/{self.process.pid}/root{self.layers}")
        kept = [name for name in _ON_DISK if (place / name).exists()]
        copied = subprocess.run(
            ["tar", "--xattrs", "--xattrs-include=*", "-cf", str(disk), *kept], cwd=place, check=False
        )
        assert copied.returncode <= _CHANGED, f"{self.name}'s disk cannot be copied"
        self.end()
        # Its network namespace ends a moment later, and its end of the cable with it.
        subprocess.run(["ip", "link", "delete", self.name], stderr=subprocess.DEVNULL, check=False)
        _ip("neighbour flush dev bridge")  # its next address on the link is another one
        again = _boot(self.name, self.address, self.layers, systemd=self.group is not None, disk=str(disk))
        self.process, self.group = again.process, again.group


@dataclass(frozen=True)
class NetnsHosts:
    """The hosts, and the inventory that leads to them."""

    inventory: Path
    hosts: tuple[NetnsHost, ...]


def missing(*tools: str) -> str:
    """Why such hosts, with these `tools` besides, cannot be made here; "" when they can."""
    if os.getuid() != 0:
        return "needs root: it makes network namespaces"
    absent = [
        tool for tool in ("/usr/sbin/sshd", "ssh", "ssh-keygen", "unshare", "ip", *tools) if shutil.which(tool) is None
    ]
    if absent:
        return f"not installed: {', '.join(absent)}"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def netns_hosts(
    count: int, directory: Path, facts: dict[str, object] | None = None, *, systemd: bool = False
) -> Iterator[NetnsHosts]:
    """Make `count` hosts, `n1` and so on; keys and inventory go to `directory`; `facts` is every host's `c4`.

    By `systemd` they are run by a real one (see `netns_systemd.missing`).
    """
    keys = _make_keys(directory)
    with ExitStack() as stack:
        stack.enter_context(_own_network())
        _ip(
            "link set lo up",
            "link add name bridge type bridge",
            "link set bridge up",
            f"addr add {CONTROLLER}/24 dev bridge",
        )
        hosts = []
        for number in range(1, count + 1):
            name = f"n{number}"
            (directory / f"{name}.layers").mkdir()
            hosts.append(_boot(name, f"{NETWORK}.{10 + number}", directory / f"{name}.layers", systemd=systemd))
            stack.callback(hosts[-1].end)
        yield NetnsHosts(_write_inventory(directory, keys, hosts, facts or {}), tuple(hosts))


@contextmanager
def _own_network() -> Iterator[None]:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.unshare(namespaces.CLONE_NEWNET)
        try:
            yield
        finally:
            namespaces.enter(f"/proc/self/fd/{home}", namespaces.CLONE_NEWNET)
    finally:
        os.close(home)


def _ip(*commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def _make_keys(directory: Path) -> Path:
    for name in ("id", "host_key"):
        path = str(directory / name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
    return directory / "id"


def _write_inventory(directory: Path, key: Path, hosts: list[NetnsHost], facts: dict[str, object]) -> Path:
    kind, public = (directory / "host_key.pub").read_text().split()[:2]
    known = directory / "known_hosts"
    known.write_text("".join(f"{host.address} {kind} {public}\n" for host in hosts))
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={known}",
        "ansible_python_interpreter": "/usr/bin/python3",
        "c4": facts,
    }
    found = {host.name: {"ansible_host": host.address} for host in hosts}
    path = directory / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"vars": common, "hosts": found}}, sort_keys=False))
    return path


def _boot(name: str, address: str, layers: Path, *, systemd: bool, disk: str = "") -> NetnsHost:
    group = netns_systemd.make_group(name) if systemd else None
    places = {"layers": str(layers), "keys": str(layers.parent), "group": str(group or ""), "disk": disk}
    order = json.dumps({"name": name, "address": address} | places)
    process = subprocess.Popen(
        [*_UNSHARE, sys.executable, __file__, order],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what goes wrong is told on stdout
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  (one libc call, looked up before the fork)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    _expect(process, "apart")
    _ip(
        f"link add name {name} type veth peer name eth0 netns {process.pid}",
        f"link set {name} master bridge",
        f"link set {name} up",
    )
    process.stdin.write("connected\n")
    process.stdin.flush()
    _expect(process, "ready")
    _await_port(address)
    return NetnsHost(name, address, process, layers, group)


def _expect(process: "subprocess.Popen[str]", word: str) -> None:
    said = process.stdout.readline().strip()
    if said != word:
        process.kill()
        raise RuntimeError(f"a namespace host did not boot: {said or 'its init died'}")


def _await_port(address: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection((address, 22), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _host_main(name: str, address: str, layers: Path, keys: Path, group: Path | None, disk: str) -> None:
    """Process 1 of a host: told where it is, make its root and network, serve SSH, reap for ever; or become systemd."""
    if group:
        netns_systemd.enter_group(group)
    _notify("apart")
    sys.stdin.readline()
    socket.sethostname(name)
    _ip("link set lo up", "link set eth0 up", f"addr add {address}/24 dev eth0")
    root = _make_root(layers, netns_systemd.make_devices if group else _share_devices, disk)
    if not disk:
        _wait_stable(root, name, address, keys)
    shutil.copy(keys / "id.pub", root / "run/authorized_keys")
    if group:
        netns_systemd.furnish(root, layers / "own", name)
    os.chroot(root)
    os.chdir("/")
    if group:
        _notify("ready")
        netns_systemd.become()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    null = subprocess.DEVNULL
    sshd = ["/usr/sbin/sshd", "-D", "-f", "/root/sshd_config"]
    subprocess.Popen(sshd, stdin=null, stdout=null, stderr=null, env=environment)
    _notify("ready")
    while True:
        os.waitpid(-1, 0)


def _wait_stable(root: Path, name: str, address: str, keys: Path) -> None:
    """What a host has on its disk from its first day."""
    shutil.copy(keys / "host_key", root / "root")
    (root / "root/sshd_config").write_text(_SSHD)
    with (root / "etc/passwd").open("a") as accounts:
        accounts.write(f"{OPERATOR}:x:2000:2000::/tmp:/bin/sh\n")
    locked = "".join(f"{name}:*:19700:0:99999:7:::\n" for name in ("root", "sshd", OPERATOR))
    (root / "etc/shadow").write_text(locked)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _notify(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _share_devices(root: Path) -> None:
    namespaces.bind("/dev", f"{root}/dev")


def _make_root(layers: Path, make_devices: Callable[[Path], None], disk: str) -> Path:
    namespaces.mount("none", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    namespaces.mount("layers", str(layers), "tmpfs")
    upper, work, root, own = (layers / name for name in ("upper", "work", "root", "own"))
    for folder in (upper, work, root, *(own / name for name in _OWN)):
        folder.mkdir(parents=True)
    if disk:
        subprocess.run(["tar", "--xattrs", "--xattrs-include=*", "-xf", disk, "-C", str(layers)], check=True)
    namespaces.mount("overlay", str(root), "overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    namespaces.mount("proc", f"{root}/proc", "proc")
    (layers / "boot_id").write_text(f"{uuid.uuid4()}\n")
    namespaces.bind(f"{layers}/boot_id", f"{root}/proc/sys/kernel/random/boot_id")
    make_devices(root)
    for name in _OWN:
        namespaces.bind(str(own / name), f"{root}/{name}")
    for path in (Path(c4bench.__file__).parents[1], Path(sys.prefix)):
        _show(path, root)
    (root / "run/sshd").mkdir(mode=0o755)
    (root / "tmp").chmod(0o1777)
    return root


def _show(path: Path, root: Path) -> None:
    """Bind `path` where a folder of the host's own hides it: an inventory may name this code's Python."""
    inside = root / path.relative_to("/")
    if not inside.exists():
        inside.mkdir(parents=True)
        namespaces.bind(str(path), str(inside), recursive=True)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    try:
        group = Path(arguments["group"]) if arguments["group"] else None
        _host_main(
            arguments["name"],
            arguments["address"],
            Path(arguments["layers"]),
            Path(arguments["keys"]),
            group,
            arguments["disk"],
        )
    except Exception as error:
        _notify(f"{type(error).__name__}: {error}")
        raise
