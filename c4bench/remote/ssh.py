"""Hosts over SSH.

Single commands and copies use fabric, on one connection that stays open. A session is an `ssh` process: it lasts as
long as a fault and waits without wake-ups, unlike a paramiko transport with its polling thread.
"""

import getopt
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import fabric
import msgspec
import paramiko

from c4bench.errors import UnhealthyError, UsageError
from c4bench.inventory import Access
from c4bench.remote.local import ProcessSession, ssh_words
from c4bench.remote.protocol import Completed, Session, checked, drain

_CONNECT_S = 15
_IDLE_WAKE_S = 30.0
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (
        paramiko.BadHostKeyException,
        "its host key is not the one in known_hosts; if it was reinstalled, replace the line there",
    ),
    (
        paramiko.AuthenticationException,
        "it rejects our key; check ansible_user and ansible_ssh_private_key_file",
    ),
    (
        paramiko.ssh_exception.NoValidConnectionsError,
        "it cannot be connected to; is it up, and does sshd listen on ansible_port?",
    ),
    (socket.gaierror, "its name does not resolve; set ansible_host"),
    (TimeoutError, "it does not answer; is it up, and does it run sshd?"),
    (EOFError, "it closed the connection; is it up, and does it run sshd?"),
)
_UNKNOWN_KEY = "its host key is not in known_hosts; check its fingerprint and add it there (ssh-keyscan)"


class SshConnection:
    """Implements `Connection`; connects when first used."""

    def __init__(self, host: str, access: Access) -> None:
        self._host, self._access = host, access
        self._fabric: fabric.Connection | None = None

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
        """Run a command to its end; with `check`, a non-zero exit code is an error.

        After `timeout_s` the command runs on and its output is lost: SSH cannot kill it.
        """
        with self._reporting(f"run {argv[0]}"):
            channel = self._transport().open_session(timeout=timeout_s)
            with channel, _deadline(channel, timeout_s) as expired:
                completed = _exchange(f"{self._host}: {argv[0]}", channel, shlex.join(argv), input)
        if expired.is_set():
            raise UnhealthyError(f"{self._host}: {argv[0]} did not end within {timeout_s:g} s; is the host overloaded?")
        if completed.code == -1:
            raise UnhealthyError(f"{self._host}: the connection was lost while {argv[0]} ran; is the host up?")
        return checked(self._host, argv, completed, check=check)

    def put(self, local: Path, remote: str) -> None:
        """Copy a file to the host, with its mode."""
        with self._reporting(f"copy {local} to {remote}"):
            self._transport()
            assert self._fabric is not None
            self._fabric.put(str(local), remote=remote)

    def start(self, argv: Sequence[str]) -> Session:
        """Start an interactive command."""
        return ProcessSession(self._host, argv[0], [*ssh_words(self._access), shlex.join(argv)])

    def close(self) -> None:
        """Close the connection."""
        if self._fabric is None:
            return
        with _waking_reader(self._fabric.transport):
            self._fabric.close()
        self._fabric = None

    def _transport(self) -> paramiko.Transport:
        if self._fabric is None:
            opened = _fabric_connection(self._access)
            opened.open()
            self._fabric = opened
            _tune(opened.transport.sock)
        transport = self._fabric.client.get_transport()
        if transport is None or not transport.is_active():
            self._fabric = None
            raise EOFError
        return transport

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, paramiko.SSHException) as error:
            where = f"{self._host} ({self._access.address})"
            raise UnhealthyError(f"{where}: cannot {doing}: {_reason(error)}") from None


def _fabric_connection(access: Access) -> fabric.Connection:
    arguments = parse(access.ssh_arguments)
    configuration = fabric.Config(lazy=True)
    if arguments.user_configuration:
        configuration.load_ssh_config()
    # With a key given, try no other: servers limit the attempts.
    keys = {"key_filename": access.key_file, "allow_agent": False, "look_for_keys": False} if access.key_file else {}
    connection = fabric.Connection(
        access.address,
        user=access.user or None,
        port=access.port or None,
        config=configuration,
        gateway=arguments.proxy_command or None,
        connect_timeout=_CONNECT_S,
        connect_kwargs=keys,
    )
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    for path in arguments.known_hosts:
        if path.exists():
            connection.client.load_system_host_keys(str(path))
    return connection


def _reason(error: Exception) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    message = " ".join(str(error).split())
    return _UNKNOWN_KEY if "not found in known_hosts" in message else message or type(error).__name__


def _exchange(what: str, channel: paramiko.Channel, command: str, data: bytes) -> Completed:
    """Feed and drain all three streams in parallel: a full one would block the command."""
    channel.exec_command(command)
    with ThreadPoolExecutor(2, "c4bench-ssh") as pool:
        fed = pool.submit(_feed, channel, data)
        stderr = pool.submit(drain, what, channel.recv_stderr, channel.close)
        stdout = drain(what, channel.recv, channel.close)
        fed.result()
        return Completed(channel.recv_exit_status(), stdout, stderr.result())


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    with suppress(OSError):  # the command may not read all of it
        channel.sendall(data)
        channel.shutdown_write()


@contextmanager
def _deadline(channel: paramiko.Channel, timeout_s: float) -> Iterator[threading.Event]:
    """Close the channel after `timeout_s`, which ends every wait on it, and set the event."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        channel.close()

    timer = threading.Timer(timeout_s, expire)
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()


def _tune(sock: object) -> None:
    """Tune the TCP socket for few small messages; the pipes of a proxy command need no tuning."""
    if isinstance(sock, socket.socket):
        # The transport's reader polls ten times a second whether it was closed; `_waking_reader` wakes it instead.
        sock.settimeout(_IDLE_WAKE_S)
        # Without this, small packets wait for acknowledgements (Nagle's algorithm), 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextmanager
def _waking_reader(transport: paramiko.Transport | None) -> Iterator[None]:
    """After the block has closed `transport`, wake its reader, which a closed descriptor does not."""
    if transport is None or not isinstance(transport.sock, socket.socket) or transport.sock.fileno() < 0:
        yield
        return
    with transport.sock.dup() as same:
        yield
        with suppress(OSError):  # the host has closed it already
            same.shutdown(socket.SHUT_RDWR)


# ssh(1), SYNOPSIS: letters followed by a colon take a value.
_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"


class SshArguments(msgspec.Struct, frozen=True):
    """`known_hosts` are the files host keys are checked against; `proxy_command` reaches the host ("" directly)."""

    known_hosts: tuple[Path, ...]
    proxy_command: str
    user_configuration: bool


def parse(words: Sequence[str]) -> SshArguments:
    """Parse `ansible_ssh_common_args`. Raises UsageError for an option ssh does not have."""
    try:
        pairs, rest = getopt.getopt(list(words), _OPTIONS)
    except getopt.GetoptError as error:
        raise UsageError(f"ansible_ssh_common_args: {error}; see ssh(1)") from None
    if rest:
        raise UsageError(f"ansible_ssh_common_args: {rest[0]!r} is not an option; see ssh(1)")
    options: dict[str, str] = {}
    for _, text in (pair for pair in pairs if pair[0] == "-o"):
        key, _, value = text.replace("=", " ", 1).strip().partition(" ")
        options.setdefault(key.lower(), value.strip())
    letters = dict(reversed(pairs))  # as in ssh, the first occurrence counts
    jump = letters.get("-J") or options.get("proxyjump", "")
    known = options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    return SshArguments(
        known_hosts=tuple(Path(name).expanduser() for name in known),
        proxy_command=options.get("proxycommand", "") or (f"ssh -W %h:%p {jump}" if jump else ""),
        user_configuration=letters.get("-F") != "none",
    )
