"""The lines of a job's telemetry, in memory and on disk."""

import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from c4bench.decoding import DecodingError, decoding, from_json
from c4bench.errors import UsageError
from c4bench.files import read_bounded
from c4bench.model.recording import Record, TaggedRecord
from c4bench.model.window import Window
from c4bench.record.encoding import encode
from c4bench.wire.window_codec import EncodedWindow, Format, WindowDecoder, WindowEncoder, check_format

_HEAD_BYTES = 1 << 16
_TAGS = "|".join(re.escape(str(one.__struct_config__.tag)) for one in get_args(TaggedRecord))
_RECORD = re.compile(rf'^\{{"(?:format":\d{{1,9}},"host"|record":"(?:{_TAGS})")'.encode(), re.MULTILINE)


class _Line(Format):
    record: str = ""


class Recording:
    """The telemetry records of a job in order of arrival: the newest `most`, or all.

    If all are kept, each is stored compressed and decoded on iteration: as objects, a job of some minutes takes more
    memory mappings than a process of the lab may have.
    """

    def __init__(self, most: int | None = None) -> None:
        self._kept: deque[Record | bytes] = deque(maxlen=most)
        self._encoder = WindowEncoder()

    def __iter__(self) -> Iterator[Record]:
        decoder = WindowDecoder()
        return (_record(zlib.decompress(kept), decoder) if isinstance(kept, bytes) else kept for kept in self._kept)

    def append(self, record: Record) -> None:
        """The next record."""
        whole = self._kept.maxlen is None
        self._kept.append(zlib.compress(_line(record, self._encoder), zlib.Z_BEST_SPEED) if whole else record)

    def extend(self, records: Iterable[Record]) -> None:
        """The next records."""
        for record in records:
            self.append(record)

    def copy(self) -> "Recording":
        """A copy of the records so far."""
        other = Recording(self._kept.maxlen)
        other._kept.extend(self._kept)
        other._encoder = self._encoder.copy()
        return other


def to_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """One line a record."""
    encoder = WindowEncoder()
    return (_line(record, encoder) + b"\n" for record in records)


def is_recording(data: bytes) -> bool:
    """Whether one of the first lines begins as `to_lines` writes a record, whole or torn, of any version."""
    return bool(_RECORD.search(data[:_HEAD_BYTES]))


def read_telemetry(path: Path) -> tuple[list[Record], int]:
    """Read the records of a file that `to_lines` wrote, and count torn lines. Raises UsageError if none can be read."""
    lines = read_bounded(path).splitlines()
    records: list[Record] = []
    decoder, problem = WindowDecoder(), ""
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(line, decoder))
        except DecodingError as error:
            problem = problem or f"line {number}: {error}"
    if problem and not any(isinstance(record, Window) for record in records):
        raise UsageError(f"{path}: {problem}; give a file of a run's telemetry folder")
    return records, len(lines) - len(records)


def _line(record: Record, encoder: WindowEncoder) -> bytes:
    encoded: Any = encoder.encode(record) if isinstance(record, Window) else record
    return encode(encoded)


def _record(line: bytes, decoder: WindowDecoder) -> Record:
    known = from_json(line, _Line)
    if known.record:
        record: TaggedRecord = from_json(line, TaggedRecord)  # type: ignore[arg-type]
        return record
    with decoding():
        check_format(known.format)
        return decoder.decode(from_json(line, EncodedWindow))
