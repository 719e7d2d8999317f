"""Everything that can be read of the files and folders that a user names, and what cannot."""

import hashlib
import os
import select
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from c4bench.budget import FILES, Account, OverBudgetError
from c4bench.evidence.formats import FORMATS, formats_of
from c4bench.evidence.limits import (
    MOST_BYTES,
    MOST_FILES,
    NothingToldError,
    UnreadableError,
    read_bytes,
    unpacked,
)
from c4bench.foreign_text import file_name
from c4bench.model.evidence import MemberEvidence, Problem, Reading, SourceFile

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


class _File(NamedTuple):
    """A file as it was when it was read: its time and size, the digest of its bytes, and what came of them."""

    version: tuple[int, int]
    digest: bytes
    outcome: Reading | UnreadableError


class Collector:
    """Reads files and folders, again and again: a file that has not changed since is not read again.

    Named pipes are read only if they are followed, with `changed`.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
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
        first: dict[bytes, Path] = {}
        account = Account("all files together", FILES)
        silent = {path for path, pipe in self._pipes.items() if not pipe.version}
        for path in _files(self._paths, problems):
            if path in silent:
                continue
            found = self._file(path)
            outcome = found.outcome
            if _tells_of_calls(outcome) and (other := first.setdefault(found.digest, path)) is not path:
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
            known = self._read[path] = _load(path, version, self._pipes.get(path))
        return known

    def _version(self, path: Path) -> tuple[int, int]:
        """What changes with the file's content."""
        pipe = self._pipes.get(path)
        return (0, pipe.version) if pipe else _version(path)


def collect(paths: Iterable[Path]) -> Reading:
    """Read all files, those in folders too, once."""
    return Collector(paths).collect()


def parse(data: bytes, path: Path) -> Reading:
    """What the bytes of one file tell; its formats are found out. Raises UnreadableError if none can be read."""
    forms = formats_of(data, path.name)
    if not forms:
        raise UnreadableError(f"it is of no known format; known are {', '.join(FORMATS)}")
    name, readings, problems = file_name(path), list[Reading](), list[UnreadableError]()
    for form in forms:
        try:
            readings.append(form.read(data, name))
        except UnreadableError as error:
            problems.append(error)
    if not readings:
        raise problems[0]
    told = [error for error in problems if not isinstance(error, NothingToldError)]
    if len(readings) == 1 and not told:
        return readings[0]
    return one_job(readings, [Problem(name, error.reason, error.place) for error in told])


def _count(outcome: Reading, size_bytes: int, account: Account) -> None:
    """Count what a file has brought. Raises OverBudgetError."""
    account.check_time()
    calls = sum(len(member.calls) + len(member.transfers) for member in outcome.members)
    account.spend(bytes=size_bytes, records=calls, names=len(outcome.members))


def _tells_of_calls(one: Reading | UnreadableError) -> bool:
    """Whether a file tells of anything that was called. Dumps of ranks that have called nothing may be all alike."""
    return isinstance(one, Reading) and any(member.last_seq >= 0 or member.status for member in one.members)


def _load(path: Path, version: tuple[int, int], pipe: Pipe | None) -> _File:
    try:
        data = unpacked(pipe.content()) if pipe else read_bytes(path)
        return _File(version, hashlib.blake2b(data, digest_size=16).digest(), parse(data, path))
    except UnreadableError as error:
        return _File(version, b"", error)


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
