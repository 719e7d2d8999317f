"""An intermittent fault: a thread reverts it and applies it again."""

import threading
import time

from c4bench.inject.actions import Action, Plan, Schedule, attempt
from c4bench.inject.journal import Journal


class FlapScheduler:
    """Starts with the fault in force. Ends after the last period, or when the fault has been reverted.

    If the process dies between two changes, the fault stays as it is until the watchdog reverts it.
    """

    def __init__(self, records: Journal, fault_id: str, plan: Plan, schedule: Schedule) -> None:
        self._records, self._id, self._plan = records, fault_id, plan
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(schedule,), daemon=True)
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop; nothing is changed after this returns."""
        self._stopped.set()
        self._thread.join()

    def _run(self, schedule: Schedule) -> None:
        for number in range(schedule.count):
            began_s = self._began_s + number * schedule.period_s
            if number and not self._perform_at(began_s, self._plan.apply):
                return
            if not self._perform_at(began_s + schedule.duty * schedule.period_s, self._plan.revert):
                return

    def _perform_at(self, at_s: float, actions: tuple[Action, ...]) -> bool:
        """Run the actions at `at_s` (monotonic clock). False if the fault was over by then."""
        if self._stopped.wait(max(0.0, at_s - time.monotonic())):
            return False
        # Under the lock, and only while the journal has the fault: after the revert nothing may be applied again.
        with self._records.lock():
            if self._records.find(self._id) is None:
                return False
            for action in actions:
                attempt(action)  # the revert meets the same error and reports it
        return True
