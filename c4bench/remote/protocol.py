"""The operations on a host, for all kinds of connections."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self

import msgspec

from c4bench.budget import HOST, Account, OverBudgetError
from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line

_CHUNK_BYTES = 1 << 16
# Runs a program, sent as text, on the host's own Python with the standard library only. It ignores the caller's
# folder and environment, and skips `site`, which is half of the start-up time.
BARE_PYTHON = ("python3", "-I", "-S", "-u", "-c")


class Completed(msgspec.Struct, frozen=True):
    """The result of a command."""

    code: int
    stdout: bytes
    stderr: bytes


class Session(Protocol):
    """A running command with which lines are exchanged.

    It must end when its standard input does: over SSH nothing else shows that we have gone.
    """

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, None while it runs."""

    def write_line(self, line: str) -> None:
        """Write one line. Raises UnhealthyError when the command has ended."""

    def read_line(self, timeout_s: float) -> str:
        """Wait for one line and return it without the newline. Raises UnhealthyError at end of file or on timeout."""

    def close(self) -> None:
        """Close the command's input, wait for its end, and kill it if it does not end."""


class Connection(Protocol):
    """A connection to one host, and a context manager that closes it.

    Every method raises UnhealthyError with the host, the failure and what to do.
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
        """Start an interactive command."""

    def close(self) -> None:
        """Close the connection; started commands run on until their own sessions are closed."""


def checked(host: str, argv: Sequence[str], completed: Completed, *, check: bool) -> Completed:
    """Return `completed`. Raises UnhealthyError with the last line of stderr when the command failed."""
    if check and completed.code != 0:
        raise UnhealthyError(f"{host}: {argv[0]} failed with code {completed.code}: {last_line(completed.stderr)}")
    return completed


def drain(source: str, receive: Callable[[int], bytes], stop: Callable[[], None]) -> bytes:
    """All that `receive` gives until it gives nothing.

    Raises UnhealthyError, after calling `stop`, if that is more than a host may bring (`budget.HOST`).
    """
    account, chunks = Account(source, HOST), []
    while chunk := receive(_CHUNK_BYTES):
        try:
            account.spend(bytes=len(chunk))
        except OverBudgetError as error:
            stop()
            raise UnhealthyError(f"{error}; look at what it prints there") from None
        chunks.append(chunk)
    return b"".join(chunks)


def last_line(output: bytes) -> str:
    """The last line of a command's output, printable."""
    lines = output.decode(errors="replace").strip().splitlines()
    return one_line(lines[-1].strip()) if lines else "it printed nothing"
