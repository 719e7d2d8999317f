"""The state of a fault's target, examined for each kind of target: here that of a whole host and of a whole switch."""

import os
import time
from pathlib import Path

import msgspec

from c4bench.errors import UsageError
from c4bench.inject import agentless, gpus, interfaces, processes
from c4bench.inject.actions import json_of, run
from c4bench.inject.agentless import AgentlessTarget
from c4bench.inject.gpus import AcceleratorTarget, GpuTarget
from c4bench.inject.interfaces import InterfaceTarget
from c4bench.inject.processes import ProcessTarget
from c4bench.model.fault import FaultRequest, SwitchPort, TargetKind

LOGS = Path("/var/log")
MEMORY = Path("/dev/shm")
PANIC = Path("/proc/sys/kernel/panic")
# A user-mode kernel has no magic SysRq; the lab provides a trigger for it in /run.
_SYSRQ = (Path("/proc/sysrq-trigger"), Path("/run/sysrq-trigger"))
_DEFAULT_ROUTE = ("ip", "-4", "-json", "route", "show", "default", "table", "main")
# Inode of the initial PID namespace (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


class _Route(msgspec.Struct, frozen=True):
    dev: str = ""


class HostTarget(msgspec.Struct, frozen=True):
    """`management` is the interface of the default route, None where there is none.

    `shared` is set for a container, which shares its clock with other hosts. `sysrq` is the path of the SysRq trigger,
    "" for none, `panic` the text of kernel.panic; the rest is in bytes and seconds.
    """

    management: InterfaceTarget | None
    nics: tuple[InterfaceTarget, ...]
    shared: bool
    sysrq: str
    panic: str
    memory_available_bytes: int
    disk_available_bytes: int
    time_s: float
    monotonic_s: float

    @property
    def listing(self) -> dict[str, str]:
        """The NICs' and the management interface's sections, and the panic setting."""
        interface_targets = (*self.nics, *([self.management] if self.management else []))
        return interfaces.join_listings(interface_targets) | {"kernel.panic": self.panic}


def examine_host(request: FaultRequest) -> HostTarget:
    """The state of the host that a fault of a whole host may change."""
    outside = management_interface(None)
    return HostTarget(
        management=interfaces.examine(SwitchPort(request.host, outside)) if outside else None,
        nics=tuple(interfaces.examine(nic) for nic in request.nics),
        shared=Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE,
        sysrq=next((str(path) for path in _SYSRQ if path.exists()), ""),
        panic=PANIC.read_text().strip(),
        memory_available_bytes=memory_available_bytes(),
        disk_available_bytes=disk_available_bytes(LOGS),
        time_s=time.time(),
        monotonic_s=time.monotonic(),
    )


def management_interface(netns: str | None) -> str:
    """The interface of the default route of the main table; "" where there is none."""
    routes = json_of("ip", run(_DEFAULT_ROUTE, netns), tuple[_Route, ...])
    return next((route.dev for route in routes if route.dev), "")


def memory_available_bytes() -> int:
    """Memory that can be allocated without swapping (MemAvailable)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def disk_available_bytes(path: Path) -> int:
    """Free space for unprivileged users on the file system of `path`."""
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


class _Link(msgspec.Struct, frozen=True):
    ifname: str = ""
    link_type: str = ""


class SwitchTarget(msgspec.Struct, frozen=True):
    """A switch's ports that are up."""

    ports: tuple[InterfaceTarget, ...]

    @property
    def listing(self) -> dict[str, str]:
        """Every port's sections."""
        return interfaces.join_listings(self.ports)


def examine_switch(request: FaultRequest) -> SwitchTarget:
    """Examine its ports. Raises UsageError when the switch is not here."""
    return SwitchTarget(tuple(interfaces.examine(port) for port in switch_ports(request)))


def switch_ports(request: FaultRequest) -> list[SwitchPort]:
    """The Ethernet interfaces that are up, by name, without ifb devices."""
    if request.switch:
        return agentless.ports(request)
    try:
        links = json_of("ip", run(("ip", "-json", "link", "show", "up"), request.netns), tuple[_Link, ...])
    except OSError:
        raise UsageError(
            f"there is no switch {request.host} here: no network namespace {request.netns}; check the inventory's netns"
        ) from None
    return [
        SwitchPort(request.host, link.ifname, request.netns)
        for link in sorted(links, key=lambda link: link.ifname)
        if link.link_type == "ether" and not link.ifname.startswith(interfaces.IFB_PREFIX)
    ]


Target = InterfaceTarget | SwitchTarget | HostTarget | ProcessTarget | GpuTarget | AcceleratorTarget | AgentlessTarget


def examine(kind: TargetKind, request: FaultRequest) -> Target:
    """The target; its `listing` is everything that a fault may change, as text. Raises C4Error when it is missing."""
    if request.switch:
        return agentless.examine(request)
    match kind:
        case TargetKind.NIC | TargetKind.PORT:
            return interfaces.examine(request.interface)
        case TargetKind.SWITCH:
            return examine_switch(request)
        case TargetKind.HOST:
            return examine_host(request)
        case TargetKind.PROCESS:
            return processes.find(request)
        case TargetKind.GPU:
            return gpus.examine(request) if gpus.hardware() == "nvidia" else gpus.examine_simulated(request)
        case TargetKind.COMPOUND:
            raise UsageError(f"{request.fault} is a compound fault; name a target for each part")
