"""What the master keeps on disk, so that it can be killed at any moment and continue later; and saved paths.

The state folder: `state.json` is replaced as a whole. `jobs/ATTEMPT.log` has a line for each answer to an attempt's
ranks and each result they sent. `events.jsonl` has the published events, `events.older.jsonl` those before. Each is on
disk before it is sent. A line that a crash has cut short was not sent, and is dropped. `paths.json` has the fabric's
paths, which can be learnt again, and `evidence/` the newest report of NCCL's RAS on each host.
"""

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from c4bench import files
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.decoding import from_json
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.event import Event
from c4bench.model.fabric import Host
from c4bench.model.steering import Incident, IsolatedHost, Policy
from c4bench.wire.messages import Exchanged, Fail, JobSpec, RelayMessage, Result

Kind = TypeVar("Kind")
_EVENTS, _OLDER_EVENTS = "events.jsonl", "events.older.jsonl"
# Of each of the two files. An event has about a kilobyte.
_EVENTS_AT_MOST_BYTES = 32 << 20


class RunningJob(msgspec.Struct):
    """A running job: its present attempt, the policy and spares for steering, and its history.

    `wanted` is how many ranks it was started with, `restarts_s` when it was restarted. `open` are the incidents for
    which the present attempt was started and which are not closed yet.
    """

    spec: JobSpec
    wanted: int
    policy: Policy = Policy()
    spares: tuple[Host, ...] = ()
    restarts_s: list[float] = []
    open: list[Incident] = []


class State(msgspec.Struct):
    """The master's saved state: jobs by name, attempts that have ended (`over`), and hosts.

    `roll` are the hosts whose agents are expected, `out` those out of service with `nics` to test them by. `taken_s` is
    when hosts were taken out of service. `events_dropped` of the event log's first events are no longer kept.
    """

    jobs: dict[str, RunningJob] = {}
    over: list[str] = []
    roll: set[str] = set()
    out: dict[str, IsolatedHost] = {}
    nics: dict[str, Host] = {}
    taken_s: list[float] = []
    events_dropped: int = 0


class FinishedExchange(msgspec.Struct, frozen=True, tag="answered"):
    """A finished exchange of a communicator, and its answer."""

    comm: str
    key: str
    exchanged: Exchanged


class CommunicatorFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The first failure of a communicator."""

    fail: Fail


class RelayedMessage(msgspec.Struct, frozen=True, tag="said"):
    """A message from one rank to others. Ranks address messages by their position, so all are kept."""

    word: RelayMessage


class CommunicatorEnded(msgspec.Struct, frozen=True, tag="ended"):
    """All ranks have left a communicator: nobody asks for its messages any more."""

    comm: str


class RankResult(msgspec.Struct, frozen=True, tag="told"):
    """A rank's result."""

    result: Result


Entry = FinishedExchange | CommunicatorFailure | RelayedMessage | CommunicatorEnded | RankResult
# An attempt's file of this size is rewritten without what is no longer asked for; the next time at twice what is left.
_ENTRIES_AT_MOST_BYTES = 64 << 20
_NEWEST_KEPT = {FinishedExchange: 1024, RankResult: 1 << 16}


class Store:
    """The state folder; with `directory` None nothing is kept after the process ends.

    Raises UnhealthyError if another master uses the folder, UsageError if a file in it cannot be read.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.state = State()
        self._most_bytes: dict[str, int] = {}
        if directory is None:
            return
        (directory / "jobs").mkdir(parents=True, exist_ok=True)
        path = directory / "state.json"
        self.state = _decode(path, State) if path.exists() else self.state
        self._lock = _lock(directory)

    @property
    def durable(self) -> bool:
        """Whether anything is kept on disk."""
        return self._directory is not None

    def save(self) -> None:
        """Write `state` to disk, completely or not at all."""
        if self._directory is None:
            return
        files.replace(self._directory / "state.json", [msgspec.json.encode(self.state)], durable=True)

    def save_paths(self, paths: bytes) -> None:
        """Write the fabric's paths to disk, completely or not at all."""
        if self._directory is not None:
            files.replace(self._directory / "paths.json", [paths])

    def paths(self) -> bytes | None:
        """The fabric's paths as saved last; None if there are none."""
        path = self._directory / "paths.json" if self._directory else None
        return path.read_bytes() if path and path.exists() else None

    def save_ras(self, host: str, report: bytes) -> None:
        """Write the newest report of NCCL's RAS on a host to `evidence/`, completely or not at all."""
        if self._directory is not None:
            (self._directory / "evidence").mkdir(exist_ok=True)
            files.replace(self._directory / f"evidence/{host}.ras", [report], durable=True)

    def append(self, attempt: str, entry: Entry) -> None:
        """Add an entry to an attempt's file."""
        name = f"jobs/{attempt}.log"
        self._append(name, entry)
        if self._directory is None:
            return
        path = self._directory / name
        if path.stat().st_size > self._most_bytes.get(attempt, _ENTRIES_AT_MOST_BYTES):
            kept = compacted(self.entries(attempt))
            files.replace(path, (msgspec.json.encode(one) + b"\n" for one in kept), durable=True)
            self._most_bytes[attempt] = max(_ENTRIES_AT_MOST_BYTES, 2 * path.stat().st_size)

    def entries(self, attempt: str) -> list[Entry]:
        """All entries of an attempt's file."""
        return self._lines(f"jobs/{attempt}.log", msgspec.json.Decoder(Entry).decode)

    def forget(self, attempt: str) -> None:
        """Remove the file of an attempt that has ended."""
        self._most_bytes.pop(attempt, None)
        if self._directory is not None:
            (self._directory / f"jobs/{attempt}.log").unlink(missing_ok=True)

    def log(self, event: Event) -> None:
        """Add an event to the event log; where it has grown too long, the older half is dropped."""
        self._append(_EVENTS, event)
        if self._directory is not None and (self._directory / _EVENTS).stat().st_size > _EVENTS_AT_MOST_BYTES:
            self.state.events_dropped += len(self._lines(_OLDER_EVENTS, bytes))
            (self._directory / _EVENTS).replace(self._directory / _OLDER_EVENTS)
            self.save()

    def events(self) -> list[Event]:
        """Every event of the event log that is kept."""
        decode = msgspec.json.Decoder(Event).decode
        return [*self._lines(_OLDER_EVENTS, decode), *self._lines(_EVENTS, decode)]

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
        """Every line of a file; an incomplete last line is removed, so that the next entry begins a new line."""
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
            raise UsageError(f"{path} is damaged ({error}); move it away to continue without it") from None

    def close(self) -> None:
        """Unlock the folder for another master."""
        if self._directory is not None:
            os.close(self._lock)


def compacted(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that a master may be asked for, in their order: the newest answers and results, and open messages."""
    counts = Counter(type(entry) for entry in entries)
    messages: dict[str, list[Entry]] = {}
    kept: list[Entry] = []
    for entry in entries:
        counts[type(entry)] -= 1
        if isinstance(entry, RelayedMessage):
            messages.setdefault(entry.word.comm, []).append(entry)
        elif isinstance(entry, CommunicatorEnded):
            messages.pop(entry.comm, None)
        elif counts[type(entry)] < _NEWEST_KEPT.get(type(entry), len(entries)):
            kept.append(entry)
    return [*kept, *(entry for held in messages.values() for entry in held)]


class SavedPaths:
    """The saved paths of the fabric of these hosts, in a file of `folder` named by a hash of all NIC addresses."""

    def __init__(self, folder: Path, hosts: Iterable[Host]) -> None:
        addresses = sorted(nic.address for host in hosts for nic in host.nics)
        self.path = folder / f"{hashlib.sha256(' '.join(addresses).encode()).hexdigest()[:16]}.json"

    def load(self) -> PathKnowledge:
        """The paths as saved last, none if there is no file. Raises UsageError if the file is damaged."""
        try:
            return PathKnowledge.from_json(self.path.read_bytes()) if self.path.exists() else PathKnowledge()
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None

    def save(self, known: PathKnowledge) -> None:
        """Save these paths, and keep those of other pairs; completely or not at all."""
        known.recall(self.load())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(self.path, [known.to_json()])


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UnhealthyError(f"another master uses {directory}; end it, or use another folder") from None
    return descriptor


def _decode(path: Path, kind: type[Kind]) -> Kind:
    try:
        return from_json(path.read_bytes(), kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is damaged ({error}); move it away to start without its jobs") from None
