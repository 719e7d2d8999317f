"""End a lab that stands still or runs too long on the machine's clock, and report what it was doing."""

import signal
import subprocess
import threading
import time
from pathlib import Path

from c4bench.lab.machine.autopsy import Autopsy, Landmarks

_STALL_S = 120.0
# A lab that has printed something and is not up after this time has lost its first program. The clock then stands still
# and the kernel spins, as in the time until the first program sleeps.
_START_S = 30.0
_STARTING_S = 0.001
_POLL_S = 1.0


class Watchdog:
    """Watches one lab from its own thread. With `virtual` time, a clock that does not move means that the lab hangs.

    A lab whose processes fill its `memory_bytes` hangs too: they read their own code again and again.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        landmarks: Landmarks,
        limit_s: float,
        memory_bytes: int,
        *,
        virtual: bool,
    ) -> None:
        self.verdict = ""
        self.peak_memory_bytes = 0
        self._process, self._landmarks, self._virtual = process, landmarks, virtual
        self._memory_bytes = memory_bytes
        self._limit_s, self._end = limit_s, time.monotonic() + limit_s
        self._complaint = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lab-watchdog", daemon=True)
        self._thread.start()

    def note_output(self, text: str) -> None:
        """Note what the lab has printed before it was up; "" once it is up."""
        self._complaint = text.strip()

    def stop(self) -> None:
        """Stop watching: the lab has ended."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        last_s, moved_at = -1.0, (began := time.monotonic())
        while not self._stopped.wait(_POLL_S):
            now = time.monotonic()
            clock_s = self._clock_s()
            self.peak_memory_bytes = max(self.peak_memory_bytes, self._held_bytes())
            if clock_s != last_s or clock_s < 0:
                last_s, moved_at = clock_s, now
            if self._complaint and clock_s < _STARTING_S and now - began > _START_S:
                self._end_lab(f"the lab's first program failed: {self._complaint.splitlines()[-1]}")
            elif now - moved_at > _STALL_S:
                self._end_lab(f"the lab stood still at {clock_s:g} virtual s for {_STALL_S:g} s{self._full()}")
            elif now > self._end:
                self._end_lab(f"the lab ran past its limit of {self._limit_s / 3600:g} h (with pytest: --c4-limit)")

    def _clock_s(self) -> float:
        """The lab's clock; negative where it cannot be read (real time, still starting, already ended)."""
        try:
            return self._autopsy().clock_s() if self._virtual else -1.0
        except (OSError, IndexError):
            return -1.0

    def _held_bytes(self) -> int:
        """The most that the kernel has held so far; 0 where it cannot be seen."""
        try:
            status = Path(f"/proc/{self._kernel()}/status").read_text()
        except (OSError, IndexError):
            return 0
        return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0)

    def _autopsy(self) -> Autopsy:
        """An autopsy of the kernel. Raises IndexError when there is none."""
        return Autopsy(self._kernel(), self._landmarks)

    def _kernel(self) -> int:
        """The process number of the kernel, the one child of our child. Raises IndexError when it has none."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    def _full(self) -> str:
        if self.peak_memory_bytes < self._memory_bytes:
            return ""
        return f", all its {self._memory_bytes >> 30} GiB of memory in use: run less in one lab"

    def _end_lab(self, why: str) -> None:
        try:
            doing = self._autopsy().processes()
        except (OSError, IndexError) as error:
            doing = [f"(cannot be read: {error})"]
        self.verdict = f"{why}; what its processes were doing:\n" + "\n".join(doing)
        self._process.send_signal(signal.SIGKILL)
        self._stopped.set()
