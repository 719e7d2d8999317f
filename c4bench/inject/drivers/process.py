"""Faults of a rank's process, by signal or by the controls it reads from shared memory."""

import signal
import time
from pathlib import Path

import msgspec

from c4bench.inject.actions import ExhaustMemory, Join, Plan, Run, SetKnob, Signal, Write
from c4bench.inject.drivers.netdev import schedule
from c4bench.inject.processes import ProcessTarget, compute_factor
from c4bench.inject.registry import driver
from c4bench.model.fault import FaultRequest

_GROUPS = Path("/sys/fs/cgroup")
# Enough for the child that exhausts the group.
_LIMIT_BYTES = 4 << 20


@driver("process.kill")
def kill(request: FaultRequest, target: ProcessTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """Kill it with SIGKILL. Only a restart of the job reverts that."""
    return Plan((f"life of process {target.pid}",), (_signal(target, signal.SIGKILL),), ())


@driver("process.segfault")
def segfault(request: FaultRequest, target: ProcessTarget) -> Plan:  # noqa: ARG001
    """Kill it with SIGSEGV, as an invalid pointer does."""
    return Plan((f"life of process {target.pid}",), (_signal(target, signal.SIGSEGV),), ())


@driver("process.stop")
def stop(request: FaultRequest, target: ProcessTarget) -> Plan:  # noqa: ARG001
    """Stop it. Its connections stay up, since the kernel or the NIC still acknowledges packets."""
    freeze, thaw = _signal(target, signal.SIGSTOP), _signal(target, signal.SIGCONT)
    return Plan((f"running of process {target.pid}",), (freeze,), (thaw,))


@driver("process.slow")
def slow(request: FaultRequest, target: ProcessTarget) -> Plan:
    """Make its computing longer by the factor."""
    controls = str(target.controls)
    factor = compute_factor(target)
    slowed = SetKnob(controls, "compute_factor", factor * request.number("factor"))
    return Plan((f"pace of process {target.pid}",), (slowed,), (SetKnob(controls, "compute_factor", factor),))


@driver("process.hang")
def hang(request: FaultRequest, target: ProcessTarget) -> Plan:
    """Make it hold Python's GIL. It stops by itself when the lease ends, even if the injector dies."""
    controls = str(target.controls)
    hung = SetKnob(controls, "hang_until_s", time.monotonic() + request.lease_s)
    return Plan((f"running of process {target.pid}",), (hung,), (SetKnob(controls, "hang_until_s", 0.0),))


@driver("process.exit")
def exit_rank(request: FaultRequest, target: ProcessTarget) -> Plan:
    """Make it exit at its next step; if it has not done so by the end of the lease it continues."""
    controls = str(target.controls)
    exiting = SetKnob(controls, "exit_code", request.number("code"))
    return Plan((f"life of process {target.pid}",), (exiting,), (SetKnob(controls, "exit_code", 0.0),))


@driver("process.memory")
def memory(request: FaultRequest, target: ProcessTarget) -> Plan:  # noqa: ARG001
    """Exhaust memory in a cgroup with it until the kernel kills it; if it survives it returns to its own cgroup."""
    group = _GROUPS / f"c4bench-{target.pid}"
    home = _GROUPS / target.group.lstrip("/")
    apply = (
        Write(str(_GROUPS / "cgroup.subtree_control"), "+memory"),
        Run(("mkdir", str(group))),
        _join(target, group),
        ExhaustMemory(str(group), _LIMIT_BYTES),
    )
    revert = (_join(target, home), Run(("rmdir", str(group))))
    return Plan((f"life of process {target.pid}",), apply, revert)


@driver("process.intermittent")
def intermittent(request: FaultRequest, target: ProcessTarget) -> Plan:
    """Make its computing longer from time to time."""
    return msgspec.structs.replace(slow(request, target), rhythm=schedule(request))


def _join(target: ProcessTarget, group: Path) -> Join:
    return Join(target.pid, target.started_ticks, target.user, str(group))


def _signal(target: ProcessTarget, number: signal.Signals) -> Signal:
    return Signal(target.pid, target.started_ticks, target.user, number)
