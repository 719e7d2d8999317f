"""The witness of a stopped or killed process: its state in /proc."""

from c4bench.inject import processes
from c4bench.inject.registry import witness
from c4bench.inject.witness.base import Aftermath, Evidence, Values, wait_until
from c4bench.model.fault import FaultRequest

STOPPED = frozenset("Tt")
ENDED = frozenset("ZX")


class ProcessState:
    """`running`, `stopped`, `ended`: one of them is 1. The fault should cause one of the states `expected`."""

    def __init__(self, expected: frozenset[str], request: FaultRequest) -> None:
        self._pid = processes.find(request).pid
        self._window_s = request.witness_s
        self._expected = expected

    def before(self) -> Values:
        """The state before the fault."""
        return _values(processes.state(self._pid))

    def during(self, onset_s: float) -> Evidence:  # noqa: ARG002  (a state does not depend on the onset)
        """Seen when the process is in an expected state."""
        observed_s = wait_until(lambda: processes.state(self._pid) in self._expected, self._window_s)
        return Evidence(_values(processes.state(self._pid)), observed_s)

    def after(self) -> Aftermath:
        """Recovered when it runs; nothing recovers a process that has ended."""
        wait_until(lambda: processes.state(self._pid) not in STOPPED, self._window_s)
        state = processes.state(self._pid)
        return Aftermath(_values(state), None if state in ENDED else state not in STOPPED)


@witness("process_ended")
def ended(request: FaultRequest) -> ProcessState:
    """Witness of a process that has ended."""
    return ProcessState(ENDED, request)


@witness("process_stopped")
def stopped(request: FaultRequest) -> ProcessState:
    """Witness of a stopped process."""
    return ProcessState(STOPPED, request)


def _values(state: str) -> Values:
    running = state not in STOPPED | ENDED
    return {"running": float(running), "stopped": float(state in STOPPED), "ended": float(state in ENDED)}
