"""A witness: the state of the process in /proc, before, during and after the fault."""

import time
from pathlib import Path

from c4bench import Aftermath, Evidence, FaultRequest, find_process


class Frozen:
    """`stopped` is 1 while the process is stopped."""

    def __init__(self, request: FaultRequest) -> None:
        self._stat = Path(f"/proc/{find_process(request).pid}/stat")
        self._window_s = request.witness_s

    def before(self) -> dict[str, float]:
        """The state before the fault."""
        return {"stopped": float(self._stat.read_text().rpartition(")")[2].split()[0] == "T")}

    def during(self, onset_s: float) -> Evidence:
        """Seen when it is stopped within the time that the request gives."""
        end_s = time.monotonic() + self._window_s
        while not self.before()["stopped"]:
            if time.monotonic() > end_s:
                return Evidence(self.before(), None)
            time.sleep(0.001)
        return Evidence(self.before(), time.time())

    def after(self) -> Aftermath:
        """Recovered when it is not stopped."""
        values = self.before()
        return Aftermath(values, recovered=not values["stopped"])
