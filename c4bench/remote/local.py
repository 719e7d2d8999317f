"""Local processes: commands of this machine, and sessions with them or with the `ssh` that runs one on a host.

Reading blocks in poll(2) without periodic wake-ups, so an idle session costs nothing on a virtual clock.
"""

import contextlib
import os
import resource
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from c4bench.budget import HOST
from c4bench.errors import UnhealthyError
from c4bench.inventory import Access
from c4bench.remote.protocol import Completed, Session, checked, last_line

_GRACE_S = 5.0
_SSH_FAILED = 255  # ssh(1), EXIT STATUS
_SHOWN_BYTES = 4096
_SESSION_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ControlMaster=no")


def ssh_words(access: Access) -> list[str]:
    """The `ssh` that runs a command on the host, which is to follow as one word."""
    words = ["ssh", *_SESSION_OPTIONS, *access.ssh_arguments]
    words += ["-l", access.user] if access.user else []
    words += ["-p", str(access.port)] if access.port else []
    words += ["-i", access.key_file, "-o", "IdentitiesOnly=yes"] if access.key_file else []
    return [*words, "--", access.address]


class ProcessSession:
    """Implements `Session`; `host` and `name` are for messages."""

    def __init__(self, host: str, name: str, argv: Sequence[str]) -> None:
        self._host, self._what = host, f"{host}: {name}"
        self._by_ssh = argv[0] == "ssh"
        # stderr goes to a file: a full pipe that nobody reads would block the command.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the session)
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0
            )
        except OSError as error:
            self._stderr.close()
            raise UnhealthyError(f"{self._what}: cannot start {argv[0]}: {error.strerror}; install it") from None
        if self._by_ssh:  # which writes no file but what the host prints on stderr
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (HOST.bytes, HOST.bytes))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._read = bytearray()

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, None while it runs."""
        return self._process.poll()

    def write_line(self, line: str) -> None:
        """Write one line. Raises UnhealthyError when the command has ended."""
        left = memoryview(f"{line}\n".encode())
        try:
            while left:
                left = left[self._stdin.write(left) :]
        except (BrokenPipeError, ValueError):
            raise self._ended() from None

    def read_line(self, timeout_s: float) -> str:
        """Wait for one line and return it without the newline. Raises UnhealthyError at end of file or on timeout."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._poll.poll(left_s * 1000):
                raise UnhealthyError(f"{self._what} gave no answer within {timeout_s:g} s; is the host overloaded?")
            chunk = os.read(self._stdout.fileno(), 65536)
            if not chunk:
                raise self._ended()
            self._read += chunk
            if len(self._read) > HOST.bytes:
                raise UnhealthyError(
                    f"{self._what} sent a line of more than {HOST.bytes:,} bytes; look at what it prints"
                )
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    def _ended(self) -> UnhealthyError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _SHOWN_BYTES))
        words = last_line(self._stderr.read())
        if self._by_ssh and self.exit_code == _SSH_FAILED:
            return UnhealthyError(f"{self._host}: no connection: {words}")
        return UnhealthyError(f"{self._what} ended (code {self.exit_code}): {words}")

    def close(self) -> None:
        """Close the command's input, wait for its end, and kill it if it does not end."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._stderr.close()


class LocalConnection:
    """Implements `Connection` with local processes."""

    def __init__(self, host: str) -> None:
        self._host = host

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",  # noqa: A002  (as subprocess names it)
        timeout_s: float,
        check: bool = True,
    ) -> Completed:
        """Run a command to its end; with `check`, a non-zero exit code is an error."""
        try:
            done = subprocess.run(argv, input=input, capture_output=True, timeout=timeout_s, check=False)
        except OSError as error:
            raise UnhealthyError(f"{self._host}: cannot run {argv[0]}: {error.strerror}; install it") from None
        except subprocess.TimeoutExpired:
            raise UnhealthyError(f"{self._host}: {argv[0]} did not end within {timeout_s:g} s; it was killed") from None
        return checked(self._host, argv, Completed(done.returncode, done.stdout, done.stderr), check=check)

    def put(self, local: Path, remote: str) -> None:
        """Copy a file, with its mode."""
        try:
            shutil.copy(local, remote)
        except OSError as error:
            raise UnhealthyError(f"{self._host}: cannot copy {local} to {remote}: {error.strerror}") from None

    def start(self, argv: Sequence[str]) -> Session:
        """Start an interactive command."""
        return ProcessSession(self._host, argv[0], argv)

    def close(self) -> None:
        """Do nothing: no connection is open."""
