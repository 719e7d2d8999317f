"""What can be asked of a host, however it is reached."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import msgspec

from c4bench.errors import UnhealthyError

# Runs a program that is sent as text on whatever Python a host has: the standard library alone, neither the caller's
# folder and variables nor what `site` would import, which is half of the start's cost.
BARE_PYTHON = ("python3", "-I", "-S", "-u", "-c")


class Completed(msgspec.Struct, frozen=True):
    """A command that has ended."""

    code: int
    stdout: bytes
    stderr: bytes


class Session(Protocol):
    """A command that goes on running and is talked to in lines.

    It must end by itself when its standard input does: over SSH nothing else tells it that we are gone.
    """

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, None while it runs."""

    def write_line(self, line: str) -> None:
        """Say one line. Raises UnhealthyError when the command has ended."""

    def read_line(self, timeout_s: float) -> str:
        """Wait for one line and return it without its end. Raises UnhealthyError at the end of output or of time."""

    def close(self) -> None:
        """End the command's input, wait for it, and end it by force if it stays."""


class Connection(Protocol):
    """A way to one host, and a context manager that closes it.

    Every method raises UnhealthyError with host, failure and mend.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",  # noqa: A002  (as subprocess names it)
        timeout_s: float,
        check: bool = True,
    ) -> Completed:
        """Run a command to its end; with `check`, a non-zero exit code is an error."""

    def put(self, local: Path, remote: str) -> None:
        """Copy a file to the host, with its mode."""

    def start(self, argv: Sequence[str]) -> Session:
        """Start a command to talk to."""

    def close(self) -> None:
        """Hang up; what was started goes on until its own session is closed."""


def checked(host: str, argv: Sequence[str], completed: Completed, *, check: bool) -> Completed:
    """`completed`, or UnhealthyError with its last words."""
    if check and completed.code != 0:
        raise UnhealthyError(f"{host}: {argv[0]} failed with code {completed.code}: {last_line(completed.stderr)}")
    return completed


def last_line(output: bytes) -> str:
    """The last line of what a command complained, on one line."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
