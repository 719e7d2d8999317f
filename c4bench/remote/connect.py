"""Choose the connection to a host."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from c4bench.errors import UnhealthyError
from c4bench.inventory import Access
from c4bench.remote.protocol import Completed, Connection, Session, checked
from c4bench.remote.session import ProcessSession
from c4bench.remote.ssh import SshConnection


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


def connect(host: str, access: Access) -> Connection:
    """A connection to `host`, opened when first used."""
    return LocalConnection(host) if access.connection == "local" else SshConnection(host, access)
