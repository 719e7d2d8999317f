"""A fault that comes and goes: the thread that undoes it and does it again, in its rhythm."""

import contextlib
import threading
import time

from c4bench.errors import C4Error
from c4bench.inject.actions import Action, Plan, Schedule
from c4bench.inject.journal import Journal


class FlapScheduler:
    """Begins with the fault in force. Ends by itself after the last beat, or when the fault is over, whoever ended it.

    Should we die between two beats, the fault stays as it is until the watchdog ends it.
    """

    def __init__(self, records: Journal, fault_id: str, plan: Plan, schedule: Schedule) -> None:
        self._records, self._id, self._plan = records, fault_id, plan
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(schedule,), daemon=True)
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """No beat comes after this."""
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
        """Whether the fault was still ours to turn at that time."""
        if self._stopped.wait(max(0.0, at_s - time.monotonic())):
            return False
        # Under the lock, and only while the journal names it: a healed host must never be hit again.
        with self._records.lock():
            if self._records.find(self._id) is None:
                return False
            for action in actions:
                with contextlib.suppress(C4Error):  # the revert will meet it again, and tell
                    action.perform()
        return True
