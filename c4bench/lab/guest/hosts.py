"""A lab host: its own hostname, processes, mounts, /etc, /var, and network, which holds its NICs and RDMA devices."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import yaml

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject.interfaces import ifb_name
from c4bench.lab import topology as fabric_of
from c4bench.lab.guest import fabric, naming, power
from c4bench.lab.spec import INVENTORY, MACHINE_ROOT, LabSpec
from c4bench.model.fabric import Host

_SSH = Path("/run/c4/ssh")
_SHARED = Path("/run/c4/shared")  # the storage that a cluster's hosts share
_NAMESPACES = (
    namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWPID
    | namespaces.CLONE_NEWCGROUP
)
_LOG = "/var/log/services.log"
_LOGS_SIZE = "32m"  # a disk that can be full
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_VERBS = Path("/sys/class/infiniband_verbs")
_UP = b"up"
_AGENT_ID = 990
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
_AGENT_ACCOUNT = f"c4bench:x:{_AGENT_ID}:{_AGENT_ID}::/nonexistent:/usr/sbin/nologin\n"
_SHADOW = "root:*:19700:0:99999:7:::\nsshd:*:19700::::::\n"  # no password opens anything, yet not locked to keys


def prepare(spec: LabSpec) -> None:
    """Make the lab's SSH keys and write its inventory, as an administrator's host would hold them."""
    _SHARED.mkdir()
    os.chown(_SHARED, _AGENT_ID, _AGENT_ID)
    _SSH.mkdir()
    for name in ("id", "host_key"):
        path = str(_SSH / name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
    public = (_SSH / "host_key.pub").read_text().split()
    known = [f"{host.address} {public[0]} {public[1]}\n" for host in fabric_of.hosts(spec.topology)]
    (_SSH / "known_hosts").write_text("".join(known))
    Path(INVENTORY).write_text(yaml.safe_dump(inventory(spec), sort_keys=False))


def inventory(spec: LabSpec) -> dict[str, object]:
    """The lab as an Ansible inventory: the only thing the rest of the house learns about it."""
    hosts = {host.name: {"ansible_host": host.address, "c4": _facts(host)} for host in fabric_of.hosts(spec.topology)}
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(_SSH / "id"),
        "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={_SSH}/known_hosts -o ControlPath=/run/c4/%h",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    ports = {
        name: {
            "ansible_connection": "local",
            "c4": {"netns": f"/run/netns/{name}", "python": sys.executable, "disruptive": True},
        }
        for name in fabric.switch_namespaces(spec.topology)
    }
    return {"all": {"vars": common, "hosts": hosts, "children": {"switches": {"hosts": ports}}}}


def _facts(host: Host) -> dict[str, object]:
    nics = [msgspec.to_builtins(nic) for nic in host.nics]
    for nic in nics:
        del nic["host"]
        nic["rate"] = f"{nic.pop('rate_bps') / 1e6:g}mbit"
    return {"disruptive": host.disruptive, "python": sys.executable, "shared": str(_SHARED), "nics": nics}


class LabHost:
    """One host; `boot` and `crash` as a machine would."""

    def __init__(self, host: Host, spec: LabSpec) -> None:
        self.host = host
        self._spec = spec
        self._index = [known.name for known in fabric_of.hosts(spec.topology)].index(host.name)
        self._ports = [port for port in fabric_of.ports(spec.topology) if port.nic.host == host.name]
        self._pid = 0
        self._crashed = False

    @property
    def log(self) -> Path | None:
        """The log of its services, as a path outside the host; None while the host is down."""
        return Path(f"/proc/{self._pid}/root{_LOG}") if self._pid else None

    def boot(self) -> None:
        """Start the host's init, with the network as a reset would leave it. Does nothing when it is up."""
        if self._pid:
            return
        if self._crashed:
            self._join_links()
        power.prepare(self.host.name)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _fork_init(self.host, self._spec, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        if not answer.isdigit():
            raise UnhealthyError(f"host {self.host.name} does not boot: {answer or 'its init died'}")
        self._pid = int(answer)

    def crash(self) -> None:
        """Die as a machine does: links first, then everything on it.

        A killed process would still say goodbye on a link that is up. The host's network outlives its processes, so it
        is cleared afterwards, as a reset would.
        """
        if not self._pid:
            return
        self._cut_links()
        os.kill(self._pid, signal.SIGKILL)
        while Path(f"/proc/{self._pid}/ns").exists() and _alive(self._pid):
            time.sleep(0.001)
        self._pid, self._crashed = 0, True
        for port in self._ports:
            with fabric.inside(self.host.name):
                ifb = ifb_name(socket.if_nametoindex(port.nic.netdev))
            for tool, lines in fabric.nic_reset(port, ifb).items():
                fabric.batch(tool, self.host.name, lines, force=True)

    def _cut_links(self) -> None:
        self._set_management("down")
        for port in self._ports:
            fabric.batch("ip", fabric.leaf_name(port.leaf), [f"link set {port.leaf_interface} down"])

    def _join_links(self) -> None:
        self._set_management("up")
        for port in self._ports:
            fabric.batch("ip", fabric.leaf_name(port.leaf), fabric.leaf_port_up(port))
            fabric.batch("ip", self.host.name, [f"link set {port.nic.netdev} up", fabric.nic_route(port)])

    def _set_management(self, state: str) -> None:
        fabric.batch("ip", "", [f"link set {fabric.management_interface(self._index)} {state}"])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def reset_signals() -> None:
    """Undo the supervisor's handlers in a child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _fork_init(host: Host, spec: LabSpec, report: int) -> None:
    """In a child of the supervisor: enter new namespaces, fork the host's process 1, tell its number, leave."""
    reset_signals()
    try:
        namespaces.enter(f"/run/netns/{host.name}", namespaces.CLONE_NEWNET)
        namespaces.unshare(_NAMESPACES)
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            os.close(report)
            _host_main(host, spec, go)
        os.close(go)
        state = os.read(ready, 4096)  # not until it closes: the host's services hold the other end too
        os.write(report, str(pid).encode() if state == _UP else state)
    except OSError as error:
        os.write(report, str(error).encode())
    os._exit(0)


def _host_main(host: Host, spec: LabSpec, ready: int) -> None:
    """Process 1 of a host: set the house in order, start its services, reap for ever."""
    try:
        os.setsid()
        socket.sethostname(host.name)
        _enter_root(host, spec)
        log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config"], close_fds=True)
        if spec.agents:
            _start_agent()
    except BaseException as error:  # whatever it is, the supervisor must hear it and this process must end
        os.write(ready, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(ready, _UP)
    os.close(ready)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.pause()


def _start_agent() -> None:
    """What a host's service manager does with the agent's unit; forked, since its modules are loaded here already."""
    if os.fork():
        return
    from c4bench.agent.main import main  # noqa: PLC0415  (a lab of bare hosts does not need it)

    try:
        os.setsid()
        sys.exit(main(["--config", "/etc/c4bench/agent.yml"]))
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)


def _enter_root(host: Host, spec: LabSpec) -> None:
    """A root of its own over the machine's, with fresh state directories, and only its own devices in /dev and /sys.

    A sysfs that is mounted in a network namespace shows the interfaces and RDMA devices of this one.
    """
    namespaces.mount("none", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    base = Path("/run/c4/hosts") / host.name
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    namespaces.mount("layers", str(base), "tmpfs")
    upper, work, root = (base / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
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
    shared = root / _SHARED.relative_to("/")
    shared.mkdir(parents=True)
    namespaces.bind(str(_SHARED), str(shared))
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
    """Have /sys list no others: of RDMA's classes this is the one that knows no network namespaces."""
    targets = {name: (_VERBS / name).readlink() for name in names}
    view = root / _VERBS.relative_to("/")
    namespaces.mount("verbs", str(view), "tmpfs", data="mode=755")
    for name, target in targets.items():
        (view / name).symlink_to(target)


def _write_files(host: Host, spec: LabSpec, root: Path) -> None:
    etc = root / "etc"
    (etc / "hostname").write_text(f"{host.name}\n")
    names = "".join(f"{known.address} {known.name}\n" for known in fabric_of.hosts(spec.topology))
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (etc / "passwd").write_text(_ACCOUNTS + (_AGENT_ACCOUNT if spec.agents else ""))
    (etc / "shadow").unlink(missing_ok=True)
    (etc / "shadow").write_text(_SHADOW)
    ssh = etc / "ssh"
    shutil.rmtree(ssh, ignore_errors=True)
    ssh.mkdir()
    (ssh / "sshd_config").write_text(_SSHD_CONFIG)
    shutil.copy(_SSH / "id.pub", ssh / "authorized_keys")
    shutil.copy(_SSH / "host_key", ssh / "host_key")
    if spec.agents:
        _provision_agent(host, Path(spec.trust), etc / "c4bench")


def _provision_agent(host: Host, trust: Path, target: Path) -> None:
    """What an image with the agent baked in would hold: its certificate and where its master is."""
    target.mkdir()
    for name, source in (("ca.pem", "ca.pem"), ("cert.pem", f"{host.name}.pem"), ("key.pem", f"{host.name}.key")):
        shutil.copy(trust / source, target / name)
    (target / "key.pem").chmod(0o640)
    os.chown(target / "key.pem", 0, _AGENT_ID)
    config = {
        "name": host.name,
        "master": fabric_of.MANAGEMENT_GATEWAY,
        "trust": "/etc/c4bench",
        "nics": [msgspec.to_builtins(nic) for nic in host.nics],
        "user": "c4bench",
        # Its code is in a checkout that others may not be let into.
        "capabilities": ["net_raw", "dac_read_search"],
    }
    (target / "agent.yml").write_text(yaml.safe_dump(config, sort_keys=False))
