"""Run the lab: boot hosts, run the command, answer `crash` and `boot`, route around dead links, reap processes.

One thread, one selector. Requests arrive as JSON lines on a socket that only root in the lab can open.
"""

import contextlib
import fcntl
import gc
import importlib
import logging
import os
import selectors
import shutil
import signal
import socket
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.lab.guest import fabric, hosts, provision
from c4bench.lab.guest.hosts import Power
from c4bench.lab.guest.routing import Routing
from c4bench.lab.spec import CONTROL_SOCKET, READY_MARK, LabResult, LabSpec
from c4bench.lab.topology import SwitchRouting

_logger = logging.getLogger(__name__)

# Wait for the kernel's queued work after link up (GID tables, neighbour timers), or it disturbs the first measurement.
_LINK_UP_WORK_S = 2.0
# Modules that agents, their spawners and their ranks load only when they need them.
_LATE = ("agent.agent", "collective.degraded", "collective.migration", "workload.programs")


class HostRequest(msgspec.Struct, frozen=True):
    """A request to the supervisor: `crash` or `boot` a host."""

    do: str
    host: str


class Supervisor:
    """Process 1 of the lab."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.selector = selectors.DefaultSelector()
        self.hosts: dict[str, hosts.LabHost] = {}
        self._command_pid = 0
        self._exit_code: int | None = None

    def run(self) -> LabResult:
        """Bring everything up, run the command to its end, and return the result."""
        self._watch_children()
        fabric.build(self.spec.topology)
        self.routing = self._route()
        self._boot_hosts()
        self.power = Power(self.hosts, self.selector)
        self._listen()
        time.sleep(_LINK_UP_WORK_S)
        ready_s = time.monotonic()
        topology = self.spec.topology
        _logger.info("lab ready: %d hosts, topology %s", len(topology.hosts), topology.name)
        if not self.spec.interactive:
            os.write(1, READY_MARK)
        self._start_command()
        while self._exit_code is None:
            self._handle_events()
        _logger.info("command ended with exit code %d", self._exit_code)
        return LabResult(exit_code=self._exit_code, ready_s=ready_s, ended_s=time.monotonic())

    def _route(self) -> Routing | None:
        """Have the switches routed: by daemons of their own, or else by us, which is returned."""
        if self.spec.topology.routing is SwitchRouting.BGP:
            bgp = importlib.import_module("c4bench.lab.guest.bgp")
            bgp.start(self.spec.topology)
            return None
        return Routing(self.spec.topology, self.selector)

    def keep_logs(self, folder: Path) -> None:
        """Copy the service log of each host since its boot; a host that is down has none."""
        folder.mkdir(exist_ok=True)
        for name, host in self.hosts.items():
            if host.log is not None:
                with suppress(OSError):  # the host may be going down
                    shutil.copyfile(host.log, folder / f"{name}.log")

    def _handle_events(self) -> None:
        timed: list[Power | Routing] = [self.power, *([self.routing] if self.routing else [])]
        due_s = [due for due in (one.due_in_s() for one in timed) if due is not None]
        for key, _ in self.selector.select(min(due_s, default=None)):
            handler: Callable[[], None] = key.data
            handler()
        for one in timed:
            one.apply_due()

    def _boot_hosts(self) -> None:
        provision.prepare(self.spec)
        if self.spec.agents:
            _load_agents()
        # Every host is forked from here, and a page is copied when it is written: keep the garbage collector from that.
        gc.collect()
        gc.freeze()
        gc.disable()
        for host in self.spec.topology.hosts:
            self.hosts[host.name] = hosts.LabHost(host, self.spec)
        if self.spec.topology.machines:
            self.hosts |= _switches(self.spec)
        for machine in self.hosts.values():
            machine.boot()

    def _watch_children(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer)
        self.selector.register(reader, selectors.EVENT_READ, lambda: self._reap(reader))

    def _reap(self, reader: int) -> None:
        os.read(reader, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._command_pid:
                self._exit_code = shell_exit_code(status)

    def _start_command(self) -> None:
        self._command_pid = os.fork()
        if self._command_pid:
            return
        hosts.reset_signals()
        os.setsid()
        self.selector.close()
        if self.spec.interactive:
            _acquire_terminal()
        try:
            os.execvp(self.spec.command[0], self.spec.command)
        except OSError as error:
            os.write(2, f"c4bench: {self.spec.command[0]}: {error.strerror}\n".encode())
            os._exit(127)

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(CONTROL_SOCKET)
        Path(CONTROL_SOCKET).chmod(0o600)
        listener.listen()
        self.selector.register(listener, selectors.EVENT_READ, lambda: self._answer(listener))

    def _answer(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            try:
                self._serve(msgspec.json.decode(stream.readline(), type=HostRequest))
                stream.write(b'{"ok":true}\n')
            except (C4Error, msgspec.DecodeError, OSError) as error:
                stream.write(msgspec.json.encode({"ok": False, "error": str(error)}) + b"\n")

    def _serve(self, request: HostRequest) -> None:
        host = self.hosts.get(request.host)
        if host is None:
            raise UsageError(f"no host {request.host!r} in this lab: one of {', '.join(self.hosts)}")
        _logger.info("%s: %s on request", request.host, request.do, extra={"host": request.host})
        match request.do:
            case "crash":
                host.crash()
            case "boot":
                host.boot()
            case _:
                raise UsageError(f"cannot {request.do!r}: crash or boot")


def _acquire_terminal() -> None:
    """Make the console the calling session's controlling terminal."""
    terminal = os.open("/dev/tty0", os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for descriptor in range(3):
        os.dup2(terminal, descriptor)


def shell_exit_code(status: int) -> int:
    """A wait status as a shell reports it: 128 + signal when killed."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def ask(do: str, host: str) -> None:
    """Ask the supervisor, from inside the lab, to `crash` or `boot` a host. Raises UnhealthyError when it cannot."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(CONTROL_SOCKET)
        with connection.makefile("rwb") as stream:
            stream.write(msgspec.json.encode(HostRequest(do, host)) + b"\n")
            stream.flush()
            answer = msgspec.json.decode(stream.readline())
    if not answer["ok"]:
        raise UnhealthyError(f"{do} {host}: {answer['error']}")


def _switches(spec: LabSpec) -> dict[str, hosts.LabHost]:
    """The machines of switches with an operating system; most labs need none of their modules."""
    twin = importlib.import_module("c4bench.lab.twin.switch")
    twin.prepare()
    return {switch.name: twin.LabSwitch(switch.name, spec) for switch in spec.topology.machines}


def _load_agents() -> None:
    """Load all that agents and ranks may need once here, instead of once in every process of every forked host."""
    programs = importlib.import_module("c4bench.workload.programs").NAMES
    for module in ("agent.main", *_LATE, *(f"workload.{name}" for name in programs)):
        importlib.import_module(f"c4bench.{module}")
    with contextlib.suppress(ImportError):  # a job that needs what is not installed is refused by name
        importlib.import_module("c4bench.workload.models.transformer")
