"""`python -m c4bench.agent.main --config agent.yml`: run the host daemon until SIGTERM.

It drops root privileges permanently when it starts. It keeps unlimited locked memory for the NICs, and CAP_NET_RAW
(capabilities(7)) to probe paths and to capture what leaves an interface. Its ranks inherit both. Only the injector
needs more rights.

With `--detach` it is a background process that can be found and ended again. A lock on the pid file shows whether it
runs, not the number in it. Everything forked from the daemon shares the lock: while it is held, a part of the daemon
lives. So a pid file that a crash has left is harmless.
"""

import argparse
import ctypes
import fcntl
import os
import pwd
import resource
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import c4bench.collective.ring_reader
import c4bench.verbs.probe  # noqa: F401  (loaded before the fork, so agent and spawner share the memory)
from c4bench import logs
from c4bench.agent.config import load
from c4bench.agent.spawner import RankMain, start
from c4bench.decoding import DecodingError, whole_number
from c4bench.errors import C4Error, UnhealthyError, UsageError
from c4bench.foreign_text import one_line
from c4bench.model.agent import AgentConfig

# linux/capability.h: the capabilities that an agent may keep.
_NUMBERS = {"dac_read_search": 2, "net_raw": 13}
_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_libc = ctypes.CDLL(None, use_errno=True)


def drop_privileges(config: AgentConfig) -> None:
    """Create the agent's folders and become the configured user; do nothing if not root, or if no user is configured.

    Raises UsageError for an unknown user or capability, UnhealthyError for a folder that belongs to somebody else.
    """
    if os.geteuid() != 0 or not config.user:
        return
    try:
        user = pwd.getpwnam(config.user)
    except KeyError:
        raise UsageError(f"agent.yml: there is no user {config.user!r} on this host; deploy again") from None
    mask = _mask(config.capabilities)
    for folder in (config.state, config.rings):
        _own(Path(folder), user)
    with suppress(ValueError):  # a container's root may not raise the container's limit
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    _become_user(user, mask)


def _own(folder: Path, user: pwd.struct_passwd) -> None:
    """Create the folder for the user. Where anybody may write, somebody else could have created it first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o755)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, user.pw_uid}:
            raise UnhealthyError(f"{folder} belongs to somebody else (user {status.st_uid}); remove it") from None
    os.chown(folder, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _mask(names: Iterable[str]) -> int:
    unknown = sorted(set(names) - _NUMBERS.keys())
    if unknown:
        raise UsageError(
            f"agent.yml: {unknown[0]!r} is no capability that an agent may keep; there are {', '.join(_NUMBERS)}"
        )
    return sum(1 << _NUMBERS[name] for name in set(names))


def _become_user(user: pwd.struct_passwd, mask: int) -> None:
    """Keep only the capabilities of `mask`; no program started from here can gain more, not even a set-user-ID one."""
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS")
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    header = struct.pack("=Ii", _VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise UnhealthyError(f"the agent cannot give up root: {what}: {os.strerror(ctypes.get_errno())}")


_POLL_S = 0.02
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


class Daemon:
    """A daemon whose pid file and log are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._pid_file = directory / "agent.pid"
        self._log = directory / "agent.log"

    def start(self, main: Callable[[], int], ready: Callable[[], bool], timeout_s: float) -> None:
        """Run `main` in the background, and return in the caller once `ready()` is true.

        Raises UnhealthyError if one runs already, or if it ends or is not ready within `timeout_s`.
        """
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        # Whoever may open the file may lock it, so nobody else may.
        lock = os.open(self._pid_file, _OPEN | os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(lock, 0o600)
        if not _try_lock(lock):
            os.close(lock)
            raise UnhealthyError(f"an agent runs here already (process {self._pid()}); end it with --stop first")
        middle = os.fork()
        if middle == 0:
            os.setsid()
            # After the second fork this is no session leader, so it cannot get a controlling terminal.
            if os.fork():
                os._exit(0)
            self._become(lock, main)
        os.close(lock)
        os.waitpid(middle, 0)
        _wait(lambda: ready() or not self.running, timeout_s)
        if not self.running:
            raise UnhealthyError(f"the agent ended at once: {self._last_line()} (log: {self._log})")
        if not ready():
            raise UnhealthyError(f"the agent is not ready after {timeout_s:g} s (log: {self._log})")

    def _become(self, lock: int, main: Callable[[], int]) -> None:
        code = 1
        try:
            os.chdir("/")
            os.umask(0o022)
            null = os.open(os.devnull, os.O_RDONLY)
            log = os.open(self._log, _OPEN | os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
            code = main()
        except BaseException:  # written to the log; `start` quotes the last line
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def stop(self, timeout_s: float) -> None:
        """End the daemon and wait until all its processes have ended; do nothing if none runs.

        After `timeout_s` it is killed. Raises UnhealthyError if a process remains even then.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.running:
                break
            self._signal(number)
            _wait(lambda: not self.running, timeout_s)
        if self.running:
            raise UnhealthyError(f"a process of the agent does not end; find it with: fuser {self._pid_file}")
        self._pid_file.unlink(missing_ok=True)

    @property
    def running(self) -> bool:
        """Whether the daemon or a process that it started lives."""
        try:
            lock = os.open(self._pid_file, _OPEN | os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock)
        finally:
            os.close(lock)

    def _pid(self) -> int:
        try:
            return max(0, whole_number(self._pid_file.read_text()))
        except DecodingError:
            return 0

    def _signal(self, number: signal.Signals) -> None:
        pid = self._pid()
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:  # it has ended, and the processes that it started are about to end
            return

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "without a message"


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


_START_S = 30.0
_STOP_S = 10.0
_LONGEST_ERROR = 8000


def main(argv: list[str] | None = None) -> int:
    """Run the agent, or start or stop it in the background; returns the exit code."""
    parser = argparse.ArgumentParser(prog="c4bench-agent", description="c4bench's host daemon")
    parser.add_argument("--config", type=Path, default=Path("/etc/c4bench/agent.yml"))
    logs.add_options(parser, "info")
    background = parser.add_mutually_exclusive_group()
    background.add_argument("--detach", action="store_true", help="return once the agent serves in the background")
    background.add_argument("--stop", action="store_true", help="end the agent that --detach started, and its ranks")
    options = parser.parse_args(argv)
    try:
        config = load(options.config)
        drop_privileges(config)
        daemon = Daemon(Path(config.state))
        if options.stop:
            daemon.stop(_STOP_S)
        elif options.detach:
            _detach(config, daemon, options)
        else:
            return _serve(config, options)
    except C4Error as error:
        print(f"c4bench-agent: {one_line(error, _LONGEST_ERROR)}", file=sys.stderr)  # noqa: T201  (the command line)
        return error.exit_code
    return 0


def _detach(config: AgentConfig, daemon: Daemon, options: argparse.Namespace) -> None:
    """Start the agent in the background; print `started` if it was not running, which shows a playbook a change."""
    socket = Path(config.socket)
    if daemon.running and socket.exists():
        return
    if not daemon.running:
        socket.unlink(missing_ok=True)  # a socket left by a crash would look like a ready agent
    daemon.start(lambda: _serve(config, options), socket.exists, _START_S)
    print("started")  # noqa: T201


def _serve(config: AgentConfig, options: argparse.Namespace) -> int:
    def load() -> RankMain:
        # Ranks need numpy and pyverbs; the agent does not.
        import c4bench.verbs.device  # noqa: F401, PLC0415
        from c4bench.workload.programs import rank_main  # noqa: PLC0415

        return lambda job, rank: rank_main(job, rank, config)

    # The spawner is forked first, from a process without threads and without the modules of the event loop.
    spawner = start(load)
    logs.configure(options.log_level, options.log_format)  # after the fork, because a rank's stderr is its own log
    from c4bench.agent.agent import serve  # noqa: PLC0415  (ranks need no event loop, TLS or websockets)

    serve(config, spawner)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
