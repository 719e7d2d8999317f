"""A driver: the actions that apply a fault, and those that revert it."""

import signal

from c4bench import DriverPlan, FaultRequest, ProcessTarget, Signal


def freeze(request: FaultRequest, target: ProcessTarget) -> DriverPlan:
    """Stop the process; the revert continues it."""
    process = target.pid, target.started_ticks, target.user
    stop, go_on = (Signal(*process, number) for number in (signal.SIGSTOP, signal.SIGCONT))
    return DriverPlan((f"running of process {target.pid}",), (stop,), (go_on,))
