"""The lines of a job's telemetry as they are on disk."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from c4bench.errors import UsageError
from c4bench.model.recording import Record, Told
from c4bench.model.telemetry import Window
from c4bench.record.encoding import encode


class _Tag(msgspec.Struct):
    record: str = ""


def to_lines(records: Iterable[Record]) -> bytes:
    """One line a record."""
    return b"".join(encode(record) + b"\n" for record in records)


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
