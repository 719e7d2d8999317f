"""Lab hosts: boot and crash; each has its own hostname, processes, mounts and network with its RDMA devices."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from c4bench import namespaces
from c4bench.errors import UnhealthyError
from c4bench.inject.interfaces import ifb_name
from c4bench.lab.guest import fabric, power, rootfs
from c4bench.lab.spec import LabSpec
from c4bench.model.fabric import Host

_NAMESPACES = (
    namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWPID
    | namespaces.CLONE_NEWCGROUP
)
_LOG = "/var/log/services.log"
_UP = b"up"


class LabHost:
    """One host that boots and crashes like a machine."""

    def __init__(self, host: Host, spec: LabSpec) -> None:
        self.host = host
        self._spec = spec
        self._index = [known.name for known in spec.topology.hosts].index(host.name)
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
        for port in self._ports:
            with fabric.inside(self.host.name):
                ifb = ifb_name(socket.if_nametoindex(port.nic.netdev))
            for tool, lines in fabric.nic_reset(port, ifb).items():
                fabric.batch(tool, self.host.name, lines, force=True)

    def _cut_links(self) -> None:
        self._set_management("down")
        for port in self._ports:
            fabric.batch("ip", port.switch, [f"link set {port.interface} down"])

    def _join_links(self) -> None:
        self._set_management("up")
        for port in self._ports:
            fabric.batch("ip", port.switch, fabric.switch_port_up(port))
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
    """In a child of the supervisor: enter new namespaces, fork the host's process 1, report its PID, exit."""
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
        state = os.read(ready, 4096)  # do not read to the end: the host's services hold the other end too
        os.write(report, str(pid).encode() if state == _UP else state)
    except OSError as error:
        os.write(report, str(error).encode())
    os._exit(0)


def _host_main(host: Host, spec: LabSpec, ready: int) -> None:
    """Process 1 of a host: set up the root, start the services, reap children forever."""
    try:
        os.setsid()
        socket.sethostname(host.name)
        rootfs.enter(host, spec)
        log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config"], close_fds=True)
        if spec.agents:
            _start_agent()
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
