"""The master's archive: what C4D ingests and finds waits in memory, and is written now and then on another thread."""

import asyncio
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Entry, Record
from c4bench.model.window import Window
from c4bench.record.archive import Archive

_logger = logging.getLogger(__name__)

# Files are written after this time (s), or once about so much waits.
_EVERY_S = 300.0
_FULL_BYTES = 64 << 20
_LOOK_S = 1.0
# More does not wait while the archive cannot be written.
_AT_MOST_BYTES = 256 << 20
# What a record takes beside its tables.
_RECORD_BYTES = 1000


class _Batch(msgspec.Struct):
    """What is written together; `size_bytes` is about what it takes in memory."""

    entries: list[Entry] = []
    findings: list[Diagnosis] = []
    size_bytes: int = 0


class Archiving:
    """Writes an `archive`; `dropped` counts the records for which there was no room while it could not be written."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._waiting = _Batch()
        self.dropped = 0

    def add(self, attempt: str, since_s: float, record: Record) -> None:
        """A record that C4D has ingested about an attempt that it follows since `since_s`."""
        waiting = self._waiting
        if waiting.size_bytes > _AT_MOST_BYTES:
            self.dropped += 1
            return
        waiting.entries.append(Entry(attempt, since_s, time.time(), record))
        waiting.size_bytes += _size(record)

    def add_findings(self, findings: Iterable[Diagnosis]) -> None:
        """What C4D has found."""
        self._waiting.findings += findings

    async def run(self) -> None:
        """Write until cancelled, and then what is left."""
        loop, written_s = asyncio.get_running_loop(), time.monotonic()
        try:
            with ThreadPoolExecutor(1, "archive") as thread:
                while True:
                    await asyncio.sleep(_LOOK_S)
                    if self._waiting.size_bytes > _FULL_BYTES or time.monotonic() - written_s > _EVERY_S:
                        batch = self._pop_batch()
                        if not await loop.run_in_executor(thread, self._write, batch):
                            self._put_back(batch)
                        written_s = time.monotonic()
        finally:
            self._write(self._pop_batch())

    def _pop_batch(self) -> _Batch:
        batch, self._waiting = self._waiting, _Batch()
        return batch

    def _put_back(self, batch: _Batch) -> None:
        newer = self._pop_batch()
        self._waiting = _Batch(
            batch.entries + newer.entries, batch.findings + newer.findings, batch.size_bytes + newer.size_bytes
        )

    def _write(self, batch: _Batch) -> bool:
        """Write what has waited; False if that fails, which is logged."""
        if batch.entries or batch.findings:
            try:
                self._archive.write(batch.entries, batch.findings, time.time())
            except OSError as error:
                values = error.strerror, self.dropped
                _logger.warning("the archive cannot be written: %s; %d records were dropped so far", *values)
                return False
            except Exception:
                # Something in the batch cannot be written: the next one can.
                self.dropped += len(batch.entries)
                _logger.exception("%d records cannot be archived, and are dropped", len(batch.entries))
        return True


def _size(record: Record) -> int:
    tables = (record.op_table, record.conn_table, record.arrival_table) if isinstance(record, Window) else ()
    return _RECORD_BYTES + sum(map(len, tables))
