"""The lines of a job's telemetry, in memory and on disk."""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from c4bench.errors import UsageError
from c4bench.model.recording import Record, Told
from c4bench.model.telemetry import Window
from c4bench.record.encoding import encode


class _Tag(msgspec.Struct):
    record: str = ""


class Recording:
    """What has been heard of a job, in that order: the newest `most` records, or all.

    Kept as lines, since a job of some minutes takes gigabytes as records; each is made anew when it is asked for.
    """

    def __init__(self, most: int | None = None) -> None:
        self._lines: deque[bytes] = deque(maxlen=most)

    def __iter__(self) -> Iterator[Record]:
        return map(_record, self._lines)

    def append(self, record: Record) -> None:
        """The next record."""
        self._lines.append(encode(record))

    def extend(self, records: Iterable[Record]) -> None:
        """The next records."""
        for record in records:
            self.append(record)

    def copy(self) -> "Recording":
        """What has been heard so far."""
        other = Recording()
        other._lines.extend(self._lines)
        return other


def to_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """One line a record."""
    return (encode(record) + b"\n" for record in records)


def read_telemetry(path: Path) -> tuple[list[Record], int]:
    """What `to_lines` wrote to a file, and how many lines are torn. Raises UsageError where nothing can be read."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from None
    found, problem = [], ""
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_record(line))
        except msgspec.DecodeError as error:
            problem = problem or f"line {number}: {error}"
    if problem and not found:
        raise UsageError(f"{path}: {problem}; give a file of a run's telemetry folder")
    return found, len(lines) - len(found)


def _record(line: bytes) -> Record:
    if msgspec.json.decode(line, type=_Tag).record:
        told: Told = msgspec.json.decode(line, type=Told)
        return told
    return msgspec.json.decode(line, type=Window)
