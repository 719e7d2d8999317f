"""Everything that can be read of the files and folders that a user names, and what cannot."""

import gzip
import hashlib
import io
import os
import select
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from c4bench.budget import FILES, Account, OverBudgetError
from c4bench.evidence import logs
from c4bench.evidence.fields import rank_in
from c4bench.evidence.formats import HEAD_BYTES, formats_of
from c4bench.evidence.limits import (
    MOST_BYTES,
    MOST_FILES,
    NothingToldError,
    TooLongError,
    UnreadableError,
    read_bytes,
    unpacked,
)
from c4bench.foreign_text import file_name
from c4bench.model.evidence import MemberEvidence, Problem, Reading, SourceFile

UNKNOWN = "it is of no known format (`c4bench detect --help` lists those that are)"
_PIECE = 1 << 16
# A writer of more than a pipe holds goes on as soon as it is read; one that pauses for longer is heard again later.
_MORE_WITHIN_S = 0.05


class Pipe:
    """A named pipe that is open for reading. The next writer's bytes replace those of the one before."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._data = bytearray()
        self._ended = False
        self.version = 0

    def poll(self) -> None:
        """Read what has been written; `version` rises with every piece."""
        while select.select([self._descriptor], [], [], _MORE_WITHIN_S)[0]:
            try:
                piece = os.read(self._descriptor, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                self._ended = bool(self._data)
                return
            if self._ended:
                self._data.clear()
                self._ended = False
            self._data += piece[: MOST_BYTES + 1 - len(self._data)]
            self.version += 1

    def content(self) -> bytes:
        """What the newest writer has written. Raises UnreadableError if that is nothing, or too much."""
        if not self._data:
            raise UnreadableError("nothing has been written to the pipe")
        if len(self._data) > MOST_BYTES:
            raise UnreadableError(f"more than {MOST_BYTES >> 20} MiB have been written to the pipe")
        return bytes(self._data)

    def close(self) -> None:
        """Stop reading."""
        os.close(self._descriptor)


# What a file is, by its first bytes and its name, with the command that reads it.
Elsewhere = Callable[[bytes, str], str]


class _File(NamedTuple):
    """A file as it was when it was read: its time and size, the digest of its bytes, and what came of them."""

    version: tuple[int, int]
    digest: bytes
    outcome: Reading | UnreadableError


class Collector:
    """Reads files and folders, again and again: a file that has not changed since is not read again.

    Named pipes are read only if they are followed, with `changed`.
    """

    def __init__(self, paths: Iterable[Path], elsewhere: Elsewhere | None = None) -> None:
        """`elsewhere` says what a file of no format here is, and what reads it; empty if it does not know either."""
        self._paths = tuple(paths)
        self._elsewhere = elsewhere
        self._read: dict[Path, _File] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._pipes: dict[Path, Pipe] = {}

    def close(self) -> None:
        """Close the pipes that are followed."""
        for pipe in self._pipes.values():
            pipe.close()

    def changed(self) -> bool:
        """Whether there are new files, or any has changed, since this was last asked."""
        seen: dict[Path, tuple[int, int]] = {}
        for path in _files(self._paths, []):
            if path.is_fifo():
                if path not in self._pipes:
                    self._pipes[path] = Pipe(path)
                self._pipes[path].poll()
            seen[path] = self._version(path)
        before, self._seen = self._seen, seen
        return seen != before

    def collect(self) -> Reading:
        """Read all that has changed. What cannot be used is a problem and does not stop the rest."""
        readings: list[Reading] = []
        problems: list[Problem] = []
        first: dict[tuple[bytes, int], Path] = {}
        account = Account("all files together", FILES)
        silent = {path for path, pipe in self._pipes.items() if not pipe.version}
        for path in _files(self._paths, problems):
            if path in silent:
                continue
            found = self._file(path)
            outcome = found.outcome
            # Files that their names give to different ranks are no copies.
            same = found.digest, rank_in(path.name)
            if _tells_of_calls(outcome) and (other := first.setdefault(same, path)) is not path:
                outcome = UnreadableError(f"it has the same bytes as {file_name(other)} and is not used")
            if isinstance(outcome, UnreadableError):
                problems.append(Problem(file_name(path), outcome.reason, outcome.place))
                continue
            try:
                _count(outcome, found.version[1], account)
            except OverBudgetError as error:
                problems.append(Problem(file_name(path), f"{error}; neither it nor the rest is used"))
                break
            readings.append(outcome)
        return one_job(readings, problems)

    def _file(self, path: Path) -> _File:
        version = self._version(path)
        known = self._read.get(path)
        if known is None or known.version != version:
            known = self._read[path] = self._load(path, version)
        return known

    def _load(self, path: Path, version: tuple[int, int]) -> _File:
        pipe = self._pipes.get(path)
        try:
            if not pipe and version[1] > MOST_BYTES and path.is_file():
                return _File(version, *_long(path))
            try:
                data = unpacked(pipe.content()) if pipe else read_bytes(path)
            except TooLongError:
                if pipe:
                    raise
                return _File(version, *_long(path))
            outcome = parse(data, path, self._elsewhere)
            return _File(version, hashlib.blake2b(data, digest_size=16).digest(), outcome)
        except UnreadableError as error:
            return _File(version, b"", error)

    def _version(self, path: Path) -> tuple[int, int]:
        """What changes with the file's content."""
        pipe = self._pipes.get(path)
        return (0, pipe.version) if pipe else _version(path)


def collect(paths: Iterable[Path]) -> Reading:
    """Read all files, those in folders too, once."""
    return Collector(paths).collect()


def parse(data: bytes, path: Path, elsewhere: Elsewhere | None = None) -> Reading:
    """What the bytes of one file tell; its formats are found out. Raises UnreadableError if none can be read."""
    forms = formats_of(data, path.name)
    if not forms:
        known = elsewhere(data[:HEAD_BYTES], path.name) if elsewhere else ""
        raise UnreadableError(known or UNKNOWN)
    name, readings, problems = file_name(path), list[Reading](), list[UnreadableError]()
    for form in forms:
        try:
            readings.append(_counted(form.read(data, name)))
        except UnreadableError as error:
            problems.append(error)
    if not readings:
        raise problems[0]
    faults = [error for error in problems if not isinstance(error, NothingToldError)]
    if len(readings) == 1 and not faults:
        return readings[0]
    return one_job(readings, [Problem(name, error.reason, error.place) for error in faults])


def _counted(reading: Reading) -> Reading:
    """What was read of a file, with how much there was of each kind."""
    counts = {
        "calls": sum(len(one.calls) + len(one.transfers) for one in reading.members),
        "counts of calls": sum(bool(one.counts) for one in reading.members),
        "ranks or processes that are gone": sum(bool(one.status) for one in reading.members),
        "time-outs": len(reading.timeouts),
        "errors": sum(len(one.events) for one in reading.logs),
        "NICs": sum(len(one.nics) for one in reading.logs),
        "measurements": sum(len(one.rows) for one in reading.benchmarks),
    }
    used = {what: count for what, count in counts.items() if count}
    first, *others = reading.sources or (None,)
    if first is None:
        return reading
    return msgspec.structs.replace(reading, sources=(msgspec.structs.replace(first, used=used), *others))


def _count(outcome: Reading, size_bytes: int, account: Account) -> None:
    """Count what a file has brought. Raises OverBudgetError."""
    account.check_time()
    calls = sum(len(member.calls) + len(member.transfers) for member in outcome.members)
    account.spend(bytes=size_bytes, records=calls, names=len(outcome.members))


def _tells_of_calls(one: Reading | UnreadableError) -> bool:
    """Whether a file tells of anything that was called. Dumps of ranks that have called nothing may be all alike."""
    if not isinstance(one, Reading):
        return False
    return bool(one.logs) or any(member.last_seq >= 0 or member.status for member in one.members)


def _long(path: Path) -> tuple[bytes, Reading]:
    """The beginning of a file that is longer than others may be, and what it tells: only a log is read as a stream.

    Raises UnreadableError.
    """
    try:
        with path.open("rb") as plain:
            head = plain.read(HEAD_BYTES)
            plain.seek(0)
            if head.startswith(b"\x1f\x8b"):
                with gzip.GzipFile(fileobj=plain) as packed:
                    return head, _streamed(packed, path)
            return head, _streamed(plain, path)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(f"it cannot be read to its end: {error}") from None


def _streamed(stream: gzip.GzipFile | io.BufferedReader, path: Path) -> Reading:
    """What a log tells that is longer than other files may be. Raises UnreadableError if it is none."""
    if not logs.is_text(stream.read(HEAD_BYTES)):
        packed = " when decompressed" if isinstance(stream, gzip.GzipFile) else ""
        raise UnreadableError(f"it has more than {MOST_BYTES >> 20} MiB{packed}, which only logs may have")
    stream.seek(0)
    return logs.read_stream(stream, file_name(path))


def _version(path: Path) -> tuple[int, int]:
    """Time and size of a file; zeros if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _files(paths: Iterable[Path], problems: list[Problem]) -> Iterator[Path]:
    """The files of all paths, in order; of folders and files beyond `MOST_FILES` there is one problem."""
    left = MOST_FILES
    for path in paths:
        if path.is_dir():
            found, seen = _in_folder(path, left, problems)
            if not seen:
                problems.append(Problem(file_name(path), "the folder has no files"))
        elif path.exists():
            found, seen = [path], 1
        else:
            problems.append(Problem(file_name(path), "there is no such file or folder"))
            continue
        left -= seen
        yield from found
        if left < 0:
            problems.append(Problem(file_name(path), f"more than {MOST_FILES} files and folders; the rest is not read"))
            return


def _in_folder(folder: Path, most: int, problems: list[Problem]) -> tuple[list[Path], int]:
    """Up to `most` files below a folder, sorted, and how many files and folders were seen: one more than `most` if cut.

    Links to folders are not followed.
    """
    found: list[Path] = []
    todo, seen = [folder], 0
    while todo:
        here = todo.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    if seen > most:
                        return sorted(found), seen
                    (todo if entry.is_dir(follow_symlinks=False) else found).append(Path(entry.path))
        except OSError as error:
            problems.append(Problem(file_name(here), f"{error.strerror}; its files are not read"))
    return sorted(path for path in found if not path.is_dir()), seen


def one_job(readings: list[Reading], problems: list[Problem]) -> Reading:
    """Join readings of one job; files of a job of another size are problems, unless they are the most."""
    sizes = Counter(size for one in readings if (size := _size(one)))
    size = sizes.most_common(1)[0][0] if sizes else 0
    members: list[MemberEvidence] = []
    sources: list[SourceFile] = []
    cannot: dict[str, None] = {}
    for one in readings:
        problems += one.problems
        if _size(one) not in {0, size}:
            reason = f"its job has {_size(one)} ranks, that of most files {size}; give each job a folder of its own"
            problems += [Problem(source.file, reason) for source in one.sources]
            continue
        members += one.members
        sources += one.sources
        cannot |= dict.fromkeys(one.cannot_tell)
    same = [one for one in readings if _size(one) in {0, size}]
    ranks = max((one.ranks for one in same), default=0)
    per_host = max((one.per_host for one in same), default=0)
    benchmarks = tuple(result for one in readings for result in one.benchmarks)
    timeouts = tuple(waits for one in same for waits in one.timeouts)
    logs = tuple(log for one in same for log in one.logs)
    shown = tuple(line for one in same for line in one.shown)
    return Reading(
        tuple(members),
        tuple(sources),
        tuple(problems),
        tuple(cannot),
        ranks,
        benchmarks,
        per_host,
        timeouts,
        logs,
        shown,
    )


def _size(one: Reading) -> int:
    """How many ranks the job has, where a file says so by its communicator of all ranks."""
    return max((member.size for member in one.members if member.comm == "0"), default=0)
