"""An archive: what C4D has ingested and found, as Parquet files in a folder for each day (UTC).

`records/day=YYYY-MM-DD/NUMBER.parquet`, and in `operations/` and `findings/` files with the same number. Each file is
whole or not there, and can be read without the others: its first window of a host has all names. Numbers go on after a
restart.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from c4bench import files
from c4bench.budget import OverBudgetError
from c4bench.decoding import DecodingError, decoding
from c4bench.errors import UsageError
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Entry, Record
from c4bench.wire.window_codec import WindowDecoder

_RECORDS, _OPERATIONS, _FINDINGS = "records", "operations", "findings"
_DAY = "day="
_DIGITS = 8
_COLUMNS = ("attempt", "since_s", "record", "body")
_FOOTER_BYTES = 1 << 16
_MISSING = "pyarrow is not installed; pip install pyarrow"


class Bounds(NamedTuple):
    """The most that an archive keeps: bytes in all, and days."""

    size_bytes: int
    days: float


class Followed(NamedTuple):
    """The records of an attempt that C4D has followed since `since_s`, in order."""

    attempt: str
    since_s: float
    records: list[Record]


class Archive:
    """The archive in `folder`, which is made if need be. Raises UsageError if it cannot be, or pyarrow is missing."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        _check_installed()
        self._folder, self._bounds = folder, bounds
        try:
            folder.mkdir(parents=True, exist_ok=True)
            numbers = [_number(path) for path in _parquet(folder)]
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}; give a folder that can be written to") from None
        self._next = max(numbers, default=-1) + 1

    def write(self, entries: Sequence[Entry], findings: Sequence[Diagnosis], now_s: float) -> None:
        """Write what has come, in the folder of today, and drop what is too old or too much. Raises OSError."""
        from c4bench.record import archive_tables as tables  # noqa: PLC0415  (pyarrow takes long to load)

        written = [
            (_OPERATIONS, tables.operations_table(entries)),
            (_FINDINGS, tables.findings_table(findings)),
            (_RECORDS, tables.records_table(entries)),
        ]
        for name, table in written:
            if table.num_rows:
                day = self._folder / name / f"{_DAY}{_date(now_s)}"
                day.mkdir(parents=True, exist_ok=True)
                files.replace(day / f"{self._next:0{_DIGITS}}.parquet", (_parquet_bytes(table),))
        self._next += 1
        self._drop(now_s)

    def _drop(self, now_s: float) -> None:
        """Drop the oldest files while there is too much, and days that are too old; never the newest file."""
        oldest = _date(now_s) - timedelta(days=self._bounds.days)
        kept = sorted(_parquet(self._folder), key=_number)
        left = sum(path.stat().st_size for path in kept)
        for path in kept:
            if _number(path) == self._next - 1:
                return
            if left <= self._bounds.size_bytes and _day(path) >= oldest:
                return
            left -= path.stat().st_size
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()


def is_archive(path: Path) -> bool:
    """Whether a folder is an archive, or a file one of its files of records."""
    if path.is_dir():
        return bool(_parquet(path, _RECORDS))
    return path.suffix == ".parquet" and _has_records(path)


def _has_records(file: Path) -> bool:
    """Whether a Parquet file ends with the names of the columns that ours have."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _FOOTER_BYTES))
            end = stream.read(_FOOTER_BYTES)
    except OSError:
        return False
    return all(name.encode() in end for name in _COLUMNS)


def read_archive(path: Path) -> tuple[list[Followed], int]:
    """The records of each attempt in an archive, or in one file of it, in order; and how many cannot be read.

    An attempt that a master went on to follow after a restart is there once more: C4D began again, too. Raises
    UsageError for what is no archive.
    """
    _check_installed()
    from c4bench.record.archive_tables import record_of  # noqa: PLC0415  (pyarrow is an extra)

    found: dict[tuple[str, float], list[Record]] = {}
    torn, problem = 0, ""
    for file in sorted(_parquet(path, _RECORDS), key=_number) if path.is_dir() else [path]:
        decoders: defaultdict[tuple[str, float], WindowDecoder] = defaultdict(WindowDecoder)
        for attempt, since_s, kind, body in _rows(file):
            key = attempt, since_s
            try:
                with decoding():
                    record = record_of(kind, body, decoders[key])
                found.setdefault(key, []).append(record)
            except (DecodingError, OverBudgetError) as error:
                torn += 1
                problem = f"{file}: {error}"
    if torn and not any(found.values()):
        raise UsageError(f"{problem}; give an archive of this version of c4bench")
    return [Followed(*key, records) for key, records in found.items()], torn


def _rows(file: Path) -> Iterator[tuple[str, float, str, bytes]]:
    import pyarrow  # noqa: PLC0415  (an extra)
    from pyarrow import parquet  # noqa: PLC0415

    try:
        table = parquet.read_table(file, columns=list(_COLUMNS), partitioning=None)
        columns: list[list[Any]] = [table.column(name).to_pylist() for name in _COLUMNS]
    except (OSError, KeyError, pyarrow.ArrowException) as error:
        raise UsageError(f"{file}: {' '.join(str(error).split())}; give an archive of c4bench master") from None
    return zip(*columns, strict=True)


def _check_installed() -> None:
    try:
        import pyarrow  # noqa: F401, PLC0415  (an extra)
    except ImportError:
        raise UsageError(_MISSING) from None


def _parquet_bytes(table: Any) -> bytes:  # noqa: ANN401  (pyarrow is an extra)
    from pyarrow import parquet  # noqa: PLC0415

    written = BytesIO()
    parquet.write_table(table, written, compression="zstd")
    return written.getvalue()


def _parquet(folder: Path, table: str = "*") -> list[Path]:
    pattern = "-".join(["[0-9]" * 4, "[0-9]" * 2, "[0-9]" * 2])
    return list(folder.glob(f"{table}/{_DAY}{pattern}/{'[0-9]' * _DIGITS}.parquet"))


def _number(path: Path) -> int:
    return int(path.stem)


def _day(path: Path) -> date:
    return date.fromisoformat(path.parent.name.removeprefix(_DAY))


def _date(now_s: float) -> date:
    return datetime.fromtimestamp(now_s, UTC).date()
