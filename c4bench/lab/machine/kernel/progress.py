"""Show the progress of a long step: one line that is rewritten on a terminal, a few plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Self

_STEP_PERCENT = 25
_WIDTH = 78


class Progress:
    """A context manager around the step `what`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stdout.isatty()
        self._shown = -1

    def __enter__(self) -> Self:
        self.show(0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.show(1.0)
        if self._terminal:
            self._write("\n")

    def show(self, fraction: float) -> None:
        """Show that the step is this far, 0 to 1."""
        percent = int(100 * min(1.0, fraction))
        if not self._terminal:
            percent -= percent % _STEP_PERCENT
        if percent <= self._shown:
            return
        self._shown = percent
        line = f"c4bench: {self._what}: {percent} %"
        self._write(f"\r{line:<{_WIDTH}}" if self._terminal else f"{line}\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
