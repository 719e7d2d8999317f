"""Say how far a lab's tests are where no terminal shows it: pytest prints nothing there while a test runs."""

import sys
import threading
import time
from types import TracebackType
from typing import Self

from c4bench.record import RunDirectory

_EVERY_S = 30.0
_ENDED = "ended"


class LabProgress:
    """A context manager around a lab that runs `total` tests (0: not known); it writes a line to stderr every 30 s.

    A test counts once its call has ended; a skipped one never does.
    """

    def __init__(self, run: RunDirectory, total: int, every_s: float = _EVERY_S) -> None:
        self._run, self._total, self._every_s = run, total, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report, name="lab-progress", daemon=True)
        self._wanted = not sys.stdout.isatty()

    def __enter__(self) -> Self:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._wanted:
            self._thread.join()

    def _report(self) -> None:
        began = time.monotonic()
        before = sum(event["kind"] == _ENDED for event in self._run.events())  # of a run that this one resumes
        while not self._stopped.wait(self._every_s):
            ended = [event["node"] for event in self._run.events() if event["kind"] == _ENDED][before:]
            last = f", the last {ended[-1]}" if ended else ""
            count = f"{len(ended)} of {self._total}" if self._total else f"{len(ended)}"
            sys.stderr.write(f"c4bench: {time.monotonic() - began:.0f} s: {count} tests have run{last}\n")
            sys.stderr.flush()
