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
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from c4bench import files
from c4bench.budget import JOB
from c4bench.c4p.knowledge.path_knowledge import PathKnowledge
from c4bench.decoding import DecodingError, decoding, from_json
from c4bench.errors import UnhealthyError, UsageError
from c4bench.model.event import Event
from c4bench.model.fabric import Host
from c4bench.model.steering import Incident, IsolatedHost, Policy
from c4bench.wire.messages import Exchanged, Fail, JobSpec, RelayMessage, Result, Seats


class StateFiles(Protocol):
    """Files and logs by name. What a call has written is kept when it returns."""

    def where(self, name: str) -> str:
        """How messages call this file or log."""

    def read(self, name: str) -> bytes | None:
        """A file; None if there is none."""

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file, completely or not at all; what is not `durable` may be lost with the machine."""

    def append(self, name: str, line: bytes) -> int:
        """Add a line to a log; return the size of all its lines."""

    def rewrite(self, name: str, lines: Iterable[bytes]) -> int:
        """Replace all lines of a log; return their size."""

    def rotate(self, name: str, older: str) -> None:
        """Call a log `older`, in place of what was called so, and begin an empty one."""

    def lines(self, name: str) -> list[bytes]:
        """The complete lines of a log."""

    def remove(self, name: str) -> None:
        """Remove a log."""

    def close(self) -> None:
        """Let another master have them."""


class StateFolder:
    """A folder on this machine. Raises UnhealthyError if another master uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for part in ("jobs", "evidence"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)

    def where(self, name: str) -> str:
        """The file's path."""
        return str(self._directory / name)

    def read(self, name: str) -> bytes | None:
        """A file; None if there is none."""
        path = self._directory / name
        return path.read_bytes() if path.exists() else None

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file, completely or not at all."""
        files.replace(self._directory / name, [content], durable=durable)

    def append(self, name: str, line: bytes) -> int:
        """Add a line, which is on disk when this returns."""
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line + b"\n")
            os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def rewrite(self, name: str, lines: Iterable[bytes]) -> int:
        """Replace all lines, completely or not at all."""
        files.replace(self._directory / name, (line + b"\n" for line in lines), durable=True)
        return (self._directory / name).stat().st_size

    def rotate(self, name: str, older: str) -> None:
        """Rename the log."""
        (self._directory / name).replace(self._directory / older)

    def lines(self, name: str) -> list[bytes]:
        """Every line; an incomplete last line is removed, so that the next entry begins a new line."""
        path = self._directory / name
        if not path.exists():
            return []
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        return whole.splitlines()

    def remove(self, name: str) -> None:
        """Remove a log."""
        (self._directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock the folder for another master."""
        os.close(self._lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UnhealthyError(f"another master uses {directory}; end it, or use another folder") from None
    return descriptor


Kind = TypeVar("Kind")
_STATE, _PATHS = "state.json", "paths.json"
_EVENTS, _OLDER_EVENTS = "events.jsonl", "events.older.jsonl"
# Of each of the two files. An event has about a kilobyte.
_EVENTS_AT_MOST_BYTES = 32 << 20


class RunningJob(msgspec.Struct):
    """A running job: its present attempt, the policy and spares for steering, and its history.

    `wanted` is how many ranks it was started with, `restarts_s` when it was restarted. `open` are the incidents for
    which the present attempt was started and which are not closed yet. `brought_by` is the host whose agent has
    brought the job back, if no operator has started it. An `attached` job is one that we only follow.
    """

    spec: JobSpec
    wanted: int
    policy: Policy = Policy()
    spares: tuple[Host, ...] = ()
    restarts_s: list[float] = []
    open: list[Incident] = []
    brought_by: str = ""
    attached: bool = False


class MasterState(msgspec.Struct):
    """The master's saved state: jobs by name, attempts that have ended (`over`), and hosts.

    `roll` are the hosts whose agents are expected, `out` those out of service with `nics` to test them by. `taken_s` is
    when hosts were taken out of service. `events_dropped` of the event log's first events are no longer kept.
    `findings_read` is the number of the newest finding on the bus that has been published.
    """

    jobs: dict[str, RunningJob] = {}
    over: list[str] = []
    roll: set[str] = set()
    out: dict[str, IsolatedHost] = {}
    nics: dict[str, Host] = {}
    taken_s: list[float] = []
    events_dropped: int = 0
    findings_read: int = 0


class FinishedExchange(msgspec.Struct, frozen=True, tag="answered"):
    """A finished exchange of a communicator, and its answer."""

    comm: str
    key: str
    exchanged: Exchanged
    seats: Seats = ()
    size: int = 0


class CommunicatorFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The first failure of a communicator."""

    fail: Fail


class RelayedMessage(msgspec.Struct, frozen=True, tag="said"):
    """A message from one rank to others. Ranks address messages by their position, so all are kept."""

    word: RelayMessage


class CommunicatorEnded(msgspec.Struct, frozen=True, tag="ended"):
    """All ranks have left a communicator: nobody asks for its messages any more."""

    comm: str
    seats: Seats = ()


class RankResult(msgspec.Struct, frozen=True, tag="told"):
    """A rank's result."""

    result: Result


JobEntry = FinishedExchange | CommunicatorFailure | RelayedMessage | CommunicatorEnded | RankResult
# An attempt's file of this size is rewritten without what is no longer asked for; the next time at twice what is left.
_ENTRIES_AT_MOST_BYTES = 64 << 20
_NEWEST_KEPT = {FinishedExchange: 1024, RankResult: 1 << 16}


class Store:
    """The master's saved state in a `place`: a folder, or other files. None keeps nothing after the process ends.

    Raises UnhealthyError if another master uses the folder, UsageError if a file in it cannot be read.
    """

    def __init__(self, place: Path | StateFiles | None) -> None:
        self._files = StateFolder(place) if isinstance(place, Path) else place
        self.state = MasterState()
        self._most_bytes: dict[str, int] = {}
        if self._files is not None and (saved := self._files.read(_STATE)) is not None:
            try:
                self.state = _decode(self._files.where(_STATE), saved, MasterState)
            except UsageError:
                self._files.close()
                raise

    @property
    def durable(self) -> bool:
        """Whether anything is kept."""
        return self._files is not None

    def save(self) -> None:
        """Write `state`, completely or not at all."""
        if self._files is not None:
            self._files.replace(_STATE, msgspec.json.encode(self.state))

    def save_paths(self, paths: bytes) -> None:
        """Write the fabric's paths, completely or not at all."""
        if self._files is not None:
            self._files.replace(_PATHS, paths, durable=False)

    def paths(self) -> bytes | None:
        """The fabric's paths as saved last; None if there are none."""
        return self._files.read(_PATHS) if self._files is not None else None

    def save_ras(self, host: str, report: bytes) -> None:
        """Write the newest report of NCCL's RAS on a host to `evidence/`, completely or not at all."""
        if self._files is not None:
            self._files.replace(f"evidence/{host}.ras", report)

    def append(self, attempt: str, entry: JobEntry) -> None:
        """Add an entry to an attempt's file."""
        if self._files is None:
            return
        size = self._files.append(_log_of(attempt), msgspec.json.encode(entry))
        if size > self._most_bytes.get(attempt, _ENTRIES_AT_MOST_BYTES):
            lines = newest([msgspec.json.encode(entry) for entry in compacted(self.entries(attempt))], 2 * JOB.bytes)
            size = self._files.rewrite(_log_of(attempt), lines)
            self._most_bytes[attempt] = max(_ENTRIES_AT_MOST_BYTES, 2 * size)

    def entries(self, attempt: str) -> list[JobEntry]:
        """All entries of an attempt's file."""
        return self._lines(_log_of(attempt), msgspec.json.Decoder(JobEntry).decode)

    def put_aside(self, attempt: str) -> str:
        """Call an attempt's file otherwise, so that it is not read again; return its new place."""
        aside = f"{_log_of(attempt)}.damaged"
        if self._files is None:
            return aside
        self._files.rotate(_log_of(attempt), aside)
        return self._files.where(aside)

    def forget(self, attempt: str) -> None:
        """Remove the file of an attempt that has ended."""
        self._most_bytes.pop(attempt, None)
        if self._files is not None:
            self._files.remove(_log_of(attempt))

    def log(self, event: Event) -> None:
        """Add an event to the event log; where it has grown too long, the older half is dropped."""
        if self._files is None:
            return
        if self._files.append(_EVENTS, msgspec.json.encode(event)) > _EVENTS_AT_MOST_BYTES:
            self.state.events_dropped += len(self._files.lines(_OLDER_EVENTS))
            self._files.rotate(_EVENTS, _OLDER_EVENTS)
            self.save()

    def events(self) -> list[Event]:
        """Every event of the event log that is kept."""
        decode = msgspec.json.Decoder(Event).decode
        return [*self._lines(_OLDER_EVENTS, decode), *self._lines(_EVENTS, decode)]

    def _lines(self, name: str, decode: Callable[[bytes], Any]) -> list[Any]:
        if self._files is None:
            return []
        try:
            with decoding():
                return [decode(line) for line in self._files.lines(name)]
        except DecodingError as error:
            where = self._files.where(name)
            raise UsageError(f"{where} is damaged ({error}); move it away to continue without it") from None
        except OSError as error:
            where = self._files.where(name)
            raise UsageError(f"{where} cannot be read ({error.strerror}); move it away, or repair it") from None

    def close(self) -> None:
        """Let another master have the state."""
        if self._files is not None:
            self._files.close()


def compacted(entries: Sequence[JobEntry]) -> list[JobEntry]:
    """The entries that a master may be asked for, in their order: the newest answers and results, and open messages."""
    counts = Counter(type(entry) for entry in entries)
    messages: dict[tuple[str, Seats], list[JobEntry]] = {}
    kept: list[JobEntry] = []
    for entry in entries:
        counts[type(entry)] -= 1
        if isinstance(entry, RelayedMessage):
            messages.setdefault((entry.word.comm, entry.word.seats), []).append(entry)
        elif isinstance(entry, CommunicatorEnded):
            messages.pop((entry.comm, entry.seats), None)
        elif counts[type(entry)] < _NEWEST_KEPT.get(type(entry), len(entries)):
            kept.append(entry)
    return [*kept, *(entry for held in messages.values() for entry in held)]


def newest(lines: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """The last of these lines that have so many bytes together."""
    kept = list(takewhile(lambda size: size <= most_bytes, accumulate(map(len, reversed(lines)))))
    return list(lines[len(lines) - len(kept) :])


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


def _log_of(attempt: str) -> str:
    return f"jobs/{attempt}.log"


def _decode(where: str, saved: bytes, kind: type[Kind]) -> Kind:
    try:
        return from_json(saved, kind)
    except DecodingError as error:
        raise UsageError(f"{where} is damaged ({error}); move it away to start without its jobs") from None
