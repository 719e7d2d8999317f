"""Faults of a rank's process: by signal, or by the knobs it reads from shared memory."""

import signal

from c4bench.inject.actions import Plan, Signal, Turn
from c4bench.inject.processes import ProcessTarget
from c4bench.model.fault import FaultRequest
from c4bench.workload.controls import Controls


def kill(request: FaultRequest, target: ProcessTarget) -> Plan:  # noqa: ARG001  (the interface of a driver)
    """End it without a word. Nothing can undo that; the job's restart does."""
    return Plan((f"life of process {target.pid}",), (_signal(target, signal.SIGKILL),), ())


def stop(request: FaultRequest, target: ProcessTarget) -> Plan:  # noqa: ARG001
    """Freeze it; its connections stay up, since the kernel or the NIC goes on acknowledging for it."""
    freeze, thaw = _signal(target, signal.SIGSTOP), _signal(target, signal.SIGCONT)
    return Plan((f"running of process {target.pid}",), (freeze,), (thaw,))


def slow(request: FaultRequest, target: ProcessTarget) -> Plan:
    """Let it compute longer, by the factor."""
    controls = str(target.controls)
    found = Controls.open(target.controls).compute_factor
    turned, back = Turn(controls, found * request.number("factor")), Turn(controls, found)
    return Plan((f"pace of process {target.pid}",), (turned,), (back,))


def _signal(target: ProcessTarget, number: signal.Signals) -> Signal:
    return Signal(target.pid, target.started_ticks, number)
