"""Run the commands of a build one after the other; keep their output, and make one line of a failure."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from c4bench.errors import UnhealthyError

_STEP_PERCENT = 25
_WIDTH = 78


class ProgressLine:
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


FULL = "No space left on device"
_FULL_BYTES = 1 << 20  # tar and others do not always say why they could not write
_REASON = re.compile(r"\berror\b|cannot|unexpected|corrupt|killed|not recognized", re.IGNORECASE)
_MAKE = re.compile(r"make(\[\d+\])?: ")


class StepError(UnhealthyError):
    """A command of the build failed; `reason` is what it printed about it, in one line."""

    def __init__(self, what: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{what} failed: {reason}")


class BuildSteps:
    """Runs commands in the given environment, which has only PATH from the caller's.

    They write to `room`, a directory of the cache. Their output is kept in memory, so a full disk does not lose it.
    """

    def __init__(self, room: Path, environment: Mapping[str, str]) -> None:
        self._room = room
        self._environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LC_ALL": "C",
            "TMPDIR": str(room),
            **environment,
        }
        self._output: list[str] = []

    def run(self, what: str, argv: Sequence[str], each_line: Callable[[str], None] = lambda _: None) -> str:
        """Run one command and return its output; `each_line` is called with each line. Raises UnhealthyError.

        `what` names the step in the message.
        """
        begin = len(self._output)
        try:
            with subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                text=True,
                errors="replace",
                process_group=0,
            ) as process:
                assert process.stdout is not None
                with _killed(process.pid):
                    for line in process.stdout:
                        self._output.append(line)
                        each_line(line)
        except OSError as error:
            raise StepError(what, f"{argv[0]}: {error.strerror}") from None
        output = self._output[begin:]
        if process.returncode:
            raise self._failure(what, output)
        return "".join(output)

    def _failure(self, what: str, output: list[str]) -> UnhealthyError:
        if any(FULL in line for line in output) or shutil.disk_usage(self._room).free < _FULL_BYTES:
            return no_space(self._room.parent, what)
        return StepError(what, reason(output))

    def write_log(self, path: Path) -> None:
        """Save what was printed, if there is space for it."""
        with suppress(OSError):
            path.write_text("".join(self._output))


@contextmanager
def _killed(group: int) -> Iterator[None]:
    """Kill the command and all that it has started if the block is left by an exception, such as a Ctrl-C."""
    try:
        yield
    except BaseException:
        os.killpg(group, signal.SIGKILL)
        raise


def reason(output: Sequence[str]) -> str:
    """The most useful line of a failed command's output: the first that names an error, else the last."""
    lines = [line.strip() for line in output if line.strip() and not _MAKE.match(line)]
    return next((line for line in lines if _REASON.search(line)), lines[-1] if lines else "it printed nothing")


def no_space(root: Path, what: str) -> UnhealthyError:
    """The error to raise when the disk of the cache `root` is full."""
    return UnhealthyError(f"{what} failed: the disk of {root} is full: make room or set C4BENCH_CACHE")
