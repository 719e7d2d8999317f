"""Ends a lab that stands still or runs too long, by the machine's clock, and says what it was doing."""

import signal
import struct
import subprocess
import threading
import time
from pathlib import Path

from c4bench.lab.machine.mconsole import Console

_STALL_S = 120.0
_POLL_S = 1.0
_CLOCK = struct.Struct("=Q")


class Watchdog:
    """Watches one lab from a thread of its own.

    It reads the virtual clock straight from the kernel's memory: a question to the kernel would be an interrupt at a
    moment of the machine's choosing, and no run would be the same again. Only a lab that is to be ended is asked.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", console: Console, clock_address: int, limit_s: float
    ) -> None:
        self.verdict = ""
        self._process, self._console, self._clock_address = process, console, clock_address
        self._end = time.monotonic() + limit_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lab-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The lab has ended."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        last_s, moved_at = -1.0, time.monotonic()
        while not self._stopped.wait(_POLL_S):
            now = time.monotonic()
            clock_s = self._clock_s()
            if clock_s != last_s or clock_s < 0:
                last_s, moved_at = clock_s, now
            if now - moved_at > _STALL_S:
                self._end_lab(f"the lab stood still at {clock_s:g} virtual s for {_STALL_S:g} s")
            elif now > self._end:
                self._end_lab("the lab ran past its time limit")

    def _clock_s(self) -> float:
        """The lab's clock; negative where there is none to read (real time, still starting, already gone)."""
        if not self._clock_address:
            return -1.0
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            with Path(f"/proc/{children[0]}/mem").open("rb", buffering=0) as memory:
                memory.seek(self._clock_address)
                return float(_CLOCK.unpack(memory.read(_CLOCK.size))[0]) / 1e9
        except (OSError, IndexError, struct.error):
            return -1.0

    def _end_lab(self, why: str) -> None:
        try:
            doing = self._console.processes()
        except OSError:
            doing = ["the kernel itself does not answer"]
        self.verdict = f"{why}; what its processes waited for:\n" + "\n".join(doing)
        self._process.send_signal(signal.SIGKILL)
        self._stopped.set()
