"""What the master keeps on disk, so that it can be killed at any moment and go on where it was.

A folder: `state.json` is replaced whole; `jobs/JOB.log` has a line for each answer given to an attempt's ranks and each
result they sent; `events.jsonl` is the log of what was said to people. Each is on disk before anybody hears of it. A
line that a crash has cut short had not been acted on, and is dropped. `paths.json` are the fabric's paths as learnt
last, which cost little to learn anew.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.event import Event
from c4bench.model.fabric import Host
from c4bench.model.steering import Incident, IsolatedHost, Policy
from c4bench.wire.messages import Exchanged, Fail, JobSpec, RelayMessage, Result

Kind = TypeVar("Kind")


class RunningJob(msgspec.Struct):
    """A job that runs: the present attempt, what it may be steered by, and what happened to it before.

    `wanted` is how many ranks it was started with, `restarts_s` when it was restarted. `open` are the incidents that
    the present attempt is to end, and that it has not ended yet.
    """

    spec: JobSpec
    wanted: int
    policy: Policy = Policy()
    spares: tuple[Host, ...] = ()
    restarts_s: list[float] = []
    open: list[Incident] = []


class State(msgspec.Struct):
    """The master's memory: jobs by name, attempts that are over, and hosts.

    `roll` are the hosts whose agents are expected, `out` those out of service with `nics` to try them by, and `taken_s`
    is when hosts were taken out.
    """

    jobs: dict[str, RunningJob] = {}
    over: list[str] = []
    roll: set[str] = set()
    out: dict[str, IsolatedHost] = {}
    nics: dict[str, Host] = {}
    taken_s: list[float] = []


class FinishedExchange(msgspec.Struct, frozen=True, tag="answered"):
    """An exchange of a job's communicator that is over, and how."""

    comm: str
    key: str
    exchanged: Exchanged


class CommunicatorFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The first failure of a communicator."""

    fail: Fail


class RelayedMessage(msgspec.Struct, frozen=True, tag="said"):
    """What one rank had to say to others; how many words there have been is what ranks count by."""

    word: RelayMessage


class RankResult(msgspec.Struct, frozen=True, tag="told"):
    """A rank's result."""

    result: Result


Entry = FinishedExchange | CommunicatorFailure | RelayedMessage | RankResult


class Store:
    """The folder, or nothing at all where `directory` is None: a master that lives as long as its process.

    Raises UnhealthyError when another master uses the folder, UsageError when what is in it cannot be read.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.state = State()
        if directory is None:
            return
        (directory / "jobs").mkdir(parents=True, exist_ok=True)
        path = directory / "state.json"
        self.state = _decode(path, State) if path.exists() else self.state
        self._lock = _lock(directory)

    @property
    def durable(self) -> bool:
        """Whether anything is kept: whoever keeps it may live for months."""
        return self._directory is not None

    def save(self) -> None:
        """Write `state` down, whole or not at all."""
        if self._directory is None:
            return
        fresh = self._directory / "state.json.new"
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(self.state))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._directory / "state.json")
        _sync_directory(self._directory)

    def save_paths(self, paths: bytes) -> None:
        """Write down what is known of the fabric's paths, whole or not at all."""
        if self._directory is not None:
            fresh = self._directory / "paths.json.new"
            fresh.write_bytes(paths)
            fresh.replace(self._directory / "paths.json")

    def paths(self) -> bytes | None:
        """What was known of the fabric's paths; None where nothing was."""
        path = self._directory / "paths.json" if self._directory else None
        return path.read_bytes() if path and path.exists() else None

    def append(self, attempt: str, entry: Entry) -> None:
        """Add to what is known of an attempt's ranks."""
        self._append(f"jobs/{attempt}.log", entry)

    def entries(self, attempt: str) -> list[Entry]:
        """What was known of an attempt's ranks."""
        return self._lines(f"jobs/{attempt}.log", msgspec.json.Decoder(Entry).decode)

    def forget(self, attempt: str) -> None:
        """The attempt is over."""
        if self._directory is not None:
            (self._directory / f"jobs/{attempt}.log").unlink(missing_ok=True)

    def log(self, event: Event) -> None:
        """Add to the log."""
        self._append("events.jsonl", event)

    def events(self) -> list[Event]:
        """Everything in the log."""
        return self._lines("events.jsonl", msgspec.json.Decoder(Event).decode)

    def _append(self, name: str, record: msgspec.Struct) -> None:
        if self._directory is None:
            return
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(record) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _lines(self, name: str, decode: Callable[[bytes], Any]) -> list[Any]:
        """Every line of a file; the tail of one that was cut short is taken off, so that the next begins a line."""
        path = self._directory / name if self._directory else None
        if path is None or not path.exists():
            return []
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        try:
            return [decode(line) for line in whole.splitlines()]
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is damaged ({error}); move it away to go on without") from None

    def close(self) -> None:
        """Let another master have the folder."""
        if self._directory is not None:
            os.close(self._lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UnhealthyError(f"another master uses {directory}; end it, or give this one a folder of its own") from None
    return descriptor


def _decode(path: Path, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is damaged ({error}); move it away to start without what the master knew") from None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
