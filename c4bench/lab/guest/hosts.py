"""Lab hosts: boot and crash; each has its own hostname, processes, mounts and network with its RDMA devices.

A host may crash or restart itself. The lab's kernel has no magic SysRq, so the trigger is a pipe to the supervisor: `c`
crashes the host, which boots again after the seconds in its kernel.panic (0: never); `b` restarts it.
"""

import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import yaml

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject.interfaces import ifb_name
from c4bench.lab.guest import fabric, flow_control, naming
from c4bench.lab.guest.naming import hide
from c4bench.lab.guest.provision import AGENT_ID, SHARED, SSH, permit
from c4bench.lab.spec import MACHINE_ROOT, LabSpec
from c4bench.lab.topology import MANAGEMENT_GATEWAY, AckTimeout, Nics, Port
from c4bench.lab.twin import connectx, lldp
from c4bench.model.fabric import Host

_logger = logging.getLogger(__name__)

_PLACE = Path("/run/c4/power")
# From the reset to a running system; a real one takes minutes.
_RESTART_S = 1.0


class Machine(Protocol):
    """A host that can be switched off and on."""

    def boot(self) -> None:
        """Start it."""

    def crash(self) -> None:
        """End it without closing its connections."""


def trigger(host: str) -> Path:
    """The pipe that a host sees as its SysRq trigger."""
    return _PLACE / host


def panic(host: str) -> Path:
    """What a host sees as its kernel.panic."""
    return _PLACE / f"{host}.panic"


def prepare_power(host: str) -> None:
    """Make both files as they are after a reset."""
    _PLACE.mkdir(exist_ok=True)
    if not trigger(host).exists():
        os.mkfifo(trigger(host), 0o600)
    panic(host).write_text("0\n")


class Power:
    """Crashes and restarts hosts at their own request."""

    def __init__(self, hosts: Mapping[str, Machine], selector: selectors.BaseSelector) -> None:
        self._hosts = hosts
        self._due: dict[str, float] = {}
        for name in hosts:
            # Open for writing too: otherwise reading would report end of file whenever no host has it open.
            reader = os.open(trigger(name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            handler: Callable[[], None] = partial(self._obey, name, reader)
            selector.register(reader, selectors.EVENT_READ, handler)

    def due_in_s(self) -> float | None:
        """Seconds until the next host starts, None when no start is scheduled."""
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def apply_due(self) -> None:
        """Start the hosts whose time has come."""
        for name in [name for name, at_s in self._due.items() if at_s <= time.monotonic()]:
            del self._due[name]
            _logger.info("%s: boot", name, extra={"host": name})
            self._hosts[name].boot()

    def _obey(self, name: str, reader: int) -> None:
        letter = os.read(reader, 64)[:1]
        waits_s = {b"c": float(panic(name).read_text()), b"b": _RESTART_S}
        if letter in waits_s:
            again = f"boots in {waits_s[letter]:g} s" if waits_s[letter] > 0 else "stays down"
            _logger.info("%s: crash by its own SysRq %s, %s", name, letter.decode(), again, extra={"host": name})
            self._hosts[name].crash()
            if waits_s[letter] > 0:
                self._due[name] = time.monotonic() + waits_s[letter]


_LOGS_SIZE = "32m"  # small, so that a fault can fill it
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_VERBS = Path("/sys/class/infiniband_verbs")
_CONNECTION_MANAGER = "rdma_cm"  # one device for all namespaces, which knows who asks
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


def enter(host: Host, spec: LabSpec, furnish: Callable[[Path], None]) -> None:
    """Enter the host's own root: empty state directories, and only the host's devices in /dev and /sys.

    A sysfs mounted in a network namespace shows the interfaces and RDMA devices of that namespace only. `furnish`
    completes the root, whose path it gets, before it is entered.
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
    furnish(root)
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
    for name in (*_DEVICES, *(f"infiniband/{device}" for device in (*verbs, _CONNECTION_MANAGER))):
        _bind_file(f"/dev/{name}", root / "dev" / name)
    _bind_file(str(trigger(host.name)), root / "run/sysrq-trigger")
    namespaces.bind(str(panic(host.name)), f"{root}/proc/sys/kernel/panic")
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
    names = "".join(f"{address} {name}\n" for name, address in spec.topology.addresses.items())
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (etc / "passwd").write_text(
        _ACCOUNTS + (_AGENT_ACCOUNT if spec.agents else "") + (lldp.ACCOUNT if spec.lldp_client else "")
    )
    (etc / "shadow").unlink(missing_ok=True)
    (etc / "shadow").write_text(_SHADOW)
    ssh = etc / "ssh"
    shutil.rmtree(ssh, ignore_errors=True)
    ssh.mkdir()
    (ssh / "sshd_config").write_text(_SSHD_CONFIG)
    shutil.copy(SSH / "id.pub", ssh / "authorized_keys")
    shutil.copy(SSH / "host_key", ssh / "host_key")


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


_NAMESPACES = namespaces.CLONE_NEWNS | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWCGROUP
_LOG = "/var/log/services.log"
_UP = b"up"


class LabHost:
    """One host that boots and crashes like a machine."""

    def __init__(self, host: Host, spec: LabSpec) -> None:
        self.host = host
        self.spec = spec
        self._index = list(spec.topology.addresses).index(host.name)
        self._ports = [port for port in spec.topology.ports if port.nic.host == host.name]
        self._pid = 0
        self._crashed = False

    @property
    def log(self) -> Path | None:
        """The log of its services, as a path outside the host; None while the host is down."""
        return Path(f"/proc/{self._pid}/root{_LOG}") if self._pid else None

    def boot(self) -> None:
        """Start the host's init, with the network as after a reset. Does nothing when the host is up."""
        if self._pid:
            return
        if self._crashed:
            self._join_links()
        prepare_power(self.host.name)
        ready, report = os.pipe()
        # A process cannot leave its process namespace; this is for its next children.
        namespaces.unshare(namespaces.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            _host_main(self, report)
        namespaces.enter("/proc/self/ns/pid", namespaces.CLONE_NEWPID)
        os.close(report)
        state = os.read(ready, 4096)  # do not read to the end: the host's services hold the other end too
        os.close(ready)
        if state != _UP:
            raise UnhealthyError(f"host {self.host.name} does not boot: {state.decode() or 'its init died'}")
        self._pid = pid

    def furnish(self, root: Path) -> None:
        """Complete the root of its file system before it is entered."""
        folder = root / "etc/c4bench"
        if self.spec.agents:
            _provision_agent(self.host, Path(self.spec.trust), folder)
        permit([self.host], (), folder)
        if self.spec.topology.nics is Nics.CONNECTX_6:
            connectx.furnish(root, self.spec.topology, self.host.name)
        if self.spec.lldp_client:
            address = f"system ip management pattern {self.host.address}"
            lldp.furnish(root, self.spec.lldp_client, f"system hostname {self.host.name}", address)

    def start_services(self) -> None:
        """Start all services, in its process 1 and its namespaces."""
        if self.spec.lldp_client:
            lldp.start("*,!lo,!eth0")
        start_sshd()
        if self.spec.agents:
            _start_agent()

    def crash(self) -> None:
        """Crash: cut the links first, then kill every process.

        On a link that is up, a killed process would still close its connections. The host's network outlives its
        processes, so it is reset afterwards.
        """
        if not self._pid:
            return
        self._cut_links()
        os.kill(self._pid, signal.SIGKILL)
        while Path(f"/proc/{self._pid}/ns").exists() and _alive(self._pid):
            time.sleep(0.001)
        self._pid, self._crashed = 0, True
        self._reset_network()

    def _reset_network(self) -> None:
        for port in self._ports:
            with fabric.inside(self.host.name):
                ifb = ifb_name(socket.if_nametoindex(port.nic.netdev))
            if port.wire:
                for tool, lines in fabric.wire_reset(port).items():
                    fabric.batch(tool, port.sender[0], lines, force=True)
                fabric.batch("tc", port.switch, fabric.far_end_reset(port), force=True)
                fabric.set_ack_floor(port, off=self.spec.topology.ack_timeout is AckTimeout.CX6_FLOOR_OFF)
                self._reset_flow_control(port)
            for tool, lines in fabric.nic_reset(port, ifb).items():
                fabric.batch(tool, self.host.name, lines, force=True)

    def _reset_flow_control(self, port: Port) -> None:
        namespace, wire = port.sender
        if port.pfc:
            with fabric.inside(namespace):
                flow_control.write(flow_control.forget(wire))
                flow_control.write(flow_control.settings(self.spec.topology)[namespace])

    def _cut_links(self) -> None:
        self._set_management("down")
        for port in self._ports:
            fabric.batch("ip", port.switch, [f"link set {port.interface} down"])

    def _join_links(self) -> None:
        self._set_management("up")
        for port in self._ports:
            fabric.batch("ip", port.switch, fabric.switch_port_up(port))
            fabric.batch("ip", self.host.name, [f"link set {port.nic.netdev} up", *fabric.nic_routes(port)])

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


def _host_main(host: LabHost, ready: int) -> None:
    """Process 1 of a host: enter its namespaces, set up the root, start the services, reap children forever."""
    try:
        reset_signals()
        namespaces.enter(f"/run/netns/{host.host.name}", namespaces.CLONE_NEWNET)
        namespaces.unshare(_NAMESPACES)
        os.setsid()
        socket.sethostname(host.host.name)
        enter(host.host, host.spec, host.furnish)
        log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        host.start_services()
    except BaseException as error:  # report any failure to the supervisor, then exit
        os.write(ready, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(ready, _UP)
    os.close(ready)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.pause()


def start_sshd() -> None:
    """Start the SSH server of a host or a switch."""
    subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config"], close_fds=True)


def _start_agent() -> None:
    """Start the agent as a host's service manager would; forked, because its modules are loaded here already."""
    if os.fork():
        return
    from c4bench.agent.main import main  # noqa: PLC0415  (a lab of bare hosts does not need it)

    try:
        os.setsid()
        sys.exit(main(["--config", "/etc/c4bench/agent.yml"]))
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
