"""Run a playbook on hosts of an inventory, and require a report from every host."""

import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from c4bench.errors import UnhealthyError
from c4bench.foreign_text import one_line
from c4bench.inventory import Inventory
from c4bench.inventory.ansible import INSTALL
from c4bench.remote import connect
from c4bench.resources import resource

_FORKS_MAX = 32
_FAILURES = ("runner_on_failed", "runner_on_unreachable")
# What Ansible says where it has not waited for ssh's own reason, as on a busy machine.
_NO_REASON = "Data could not be sent to remote host"
_SSH_ANSWERS_WITHIN_S = 20.0
# Ansible's names of the counters, by ours.
_COUNTERS = {"ok": "ok", "changed": "changed", "failed": "failures", "unreachable": "dark", "skipped": "skipped"}


class HostTally(msgspec.Struct, frozen=True):
    """A host's tasks by result; `changed` ones count as `ok` too."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0


class PlaybookResult(msgspec.Struct, frozen=True):
    """A successful playbook; `elapsed_s` is the time from Ansible's first to its last event."""

    rc: int
    hosts: dict[str, HostTally]
    elapsed_s: float


def playbook(
    name: str,
    inventory: Inventory,
    *,
    hosts: Sequence[str],
    variables: Mapping[str, object],
    directory: Path,
    check: bool = False,
) -> PlaybookResult:
    """Run `playbooks/NAME.yml` on `hosts`, with Ansible's files in a new folder of `directory`.

    With `check` nothing is changed, and the result says what would be.

    Raises UnhealthyError with host, task and message when a task fails or a host is unreachable, and when a host took
    no part, which Ansible counts as success.
    """
    run = _runner()
    private = _new_folder(directory, name)
    events = _Events()
    with _control_directory() as control, _restoring_signals():
        runner = run(
            private_data_dir=str(private),
            ident="run",
            playbook=str(resource("playbooks", f"{name}.yml")),
            inventory=str(inventory.path.resolve()),
            limit=",".join(hosts),
            forks=max(1, min(len(hosts), _FORKS_MAX)),
            extravars=dict(variables),
            cmdline="--check" if check else None,
            envvars=_environment(private, control),
            quiet=True,
            event_handler=events.add,
        )
    if runner.status == "canceled":
        raise KeyboardInterrupt
    kept = private / "artifacts" / "run"
    (kept / "command").unlink(missing_ok=True)  # it contains our whole environment, and run directories are shared
    return _check(name, inventory, hosts, events, runner.rc, kept / "stdout")


def _runner() -> Callable[..., Any]:
    """`ansible_runner.run`, which only those need who run playbooks."""
    try:
        from ansible_runner import run  # noqa: PLC0415
    except ImportError:
        raise UnhealthyError(f"playbooks need ansible-runner; run: {INSTALL}") from None
    runner: Callable[..., Any] = run
    return runner


class _Events:
    """Collects the events of a run."""

    def __init__(self) -> None:
        self.failures: list[dict[str, Any]] = []
        self.tallies: dict[str, HostTally] = {}
        self._times: list[datetime.datetime] = []

    def add(self, event: dict[str, Any]) -> bool:
        """Add an event; True makes ansible-runner keep its file."""
        data = event.get("event_data", {})
        self._times.append(datetime.datetime.fromisoformat(event["created"]))
        if event["event"] in _FAILURES and not data.get("ignore_errors"):
            self.failures.append(data)
        if event["event"] == "playbook_on_stats":
            self.tallies = {
                host: HostTally(**{ours: data[theirs].get(host, 0) for ours, theirs in _COUNTERS.items()})
                for host in data["processed"]
            }
        return True

    @property
    def elapsed_s(self) -> float:
        """From the first event to the last."""
        return (max(self._times) - min(self._times)).total_seconds() if self._times else 0.0


def _check(
    name: str, inventory: Inventory, hosts: Sequence[str], events: _Events, rc: int, log: Path
) -> PlaybookResult:
    if events.failures:
        raise UnhealthyError(f"{_failure(events.failures, inventory)} (playbook {name}; log: {log})")
    if rc != 0:
        raise UnhealthyError(f"playbook {name} did not run (code {rc}): {_complaint(log)} (log: {log})")
    left_out = [host for host in hosts if host not in events.tallies]
    if left_out or not hosts:
        raise UnhealthyError(f"playbook {name} did nothing on {', '.join(left_out) or 'any host'} (log: {log})")
    return PlaybookResult(rc, events.tallies, events.elapsed_s)


def _failure(failures: Sequence[Mapping[str, Any]], inventory: Inventory) -> str:
    first = failures[0]
    host, result = first["host"], first.get("res", {})
    said = [str(result.get(key, "")).strip() for key in ("stderr", "msg")]
    words = next(filter(None, said), "no reason given")
    message = one_line(words.splitlines()[-1].strip())
    if _NO_REASON in message:
        message = _reason_of_ssh(host, inventory) or message
    also = sorted({failure["host"] for failure in failures} - {host})
    others = f"; also {', '.join(also)}" if also else ""
    return f"{host}: task {first.get('task', '')!r}: {message}{others}"


def _reason_of_ssh(host: str, inventory: Inventory) -> str:
    """Why ssh does not reach a host; "" if it does now."""
    with closing(connect(host, inventory.access[host]).start(["echo"])) as session:
        try:
            session.read_line(_SSH_ANSWERS_WITHIN_S)
        except UnhealthyError as error:
            return str(error)
    return ""


def _complaint(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    errors = [line for line in lines if line.startswith(("ERROR", "[ERROR]"))]
    return one_line((errors or [line for line in lines if line][-1:] or ["it printed nothing"])[0])


def _new_folder(directory: Path, name: str) -> Path:
    number = 1
    while True:
        private = directory / f"{name}-{number}"
        try:
            private.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return private.resolve()


def _search_path() -> str:
    """`PATH` with the Ansible of our own environment first, activated or not."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    if shutil.which("ansible-playbook", path=path) is None:
        raise UnhealthyError(f"playbooks need ansible-playbook; run: {INSTALL}")
    return path


def _environment(private: Path, control: Path) -> dict[str, str]:
    """Ansible's settings: one login per host, no fact gathering, pipelined modules, and no interactive prompts."""
    ssh = (
        "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ControlMaster=auto -o ControlPersist=60s "
        "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"
    )
    return {
        "PATH": _search_path(),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_HOME": str(private / "home"),
        "ANSIBLE_LOCAL_TEMP": str(private / "tmp"),
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_TIMEOUT": "15",
        "ANSIBLE_SSH_ARGS": ssh,
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control),
        "ANSIBLE_SSH_CONTROL_PATH": "%(directory)s/%%C",
        "ANSIBLE_RETRY_FILES_ENABLED": "false",
        "ANSIBLE_NOCOLOR": "true",
    }


@contextmanager
def _control_directory() -> Iterator[Path]:
    """A folder for SSH control sockets, whose connections are closed at the end.

    It is in `$C4BENCH_SOCKETS`, else /run, else the temporary directory: socket paths are limited to 108 bytes, and a
    lab's shared file system cannot hold sockets.
    """
    candidates = [os.environ.get("C4BENCH_SOCKETS", ""), "/run", tempfile.gettempdir()]
    parent = next(path for path in candidates if path and os.access(path, os.W_OK | os.X_OK))
    with tempfile.TemporaryDirectory(prefix="c4-", dir=parent) as name:
        control = Path(name)
        try:
            yield control
        finally:
            for socket in control.iterdir():
                end = ["ssh", "-F", "none", "-O", "exit", "-o", f"ControlPath={socket}", "host"]
                subprocess.run(end, stdin=subprocess.DEVNULL, capture_output=True, check=False)


@contextmanager
def _restoring_signals() -> Iterator[None]:
    """Restore the signal handlers that ansible-runner replaces in the main thread."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
