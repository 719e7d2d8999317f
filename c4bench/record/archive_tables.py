"""The tables of an archive: records as a recording has them, operations that ended, and findings."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from c4bench.model.diagnosis import Diagnosis
from c4bench.model.recording import Entry, Record, TaggedRecord
from c4bench.model.window import Caller, CallName, Window
from c4bench.model.window_columns import OP_ROW, rows
from c4bench.record.encoding import encode
from c4bench.wire.window_codec import WindowDecoder, WindowEncoder, from_message

_WINDOW = "window"
_tagged: msgspec.msgpack.Decoder[TaggedRecord] = msgspec.msgpack.Decoder(TaggedRecord)
_TEXT = pa.dictionary(pa.int32(), pa.string())
RECORDS = pa.schema(
    [
        ("attempt", _TEXT),
        ("since_s", pa.float64()),
        ("time_s", pa.float64()),
        ("record", _TEXT),
        ("host", _TEXT),
        ("sequence", pa.int64()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("body", pa.binary()),
    ]
)
FINDINGS = pa.schema(
    [
        ("attempt", _TEXT),
        ("named_s", pa.float64()),
        ("onset_s", pa.float64()),
        ("alarmed_s", pa.float64()),
        ("syndrome", _TEXT),
        ("cause", _TEXT),
        ("component", pa.string()),
        ("confidence", pa.float64()),
        ("line", pa.string()),
    ]
)


def records_table(entries: Iterable[Entry]) -> pa.Table:
    """A row for each record, in order; `body` is its message, of windows as an agent sends them: names go once.

    `record_of` reads it again.
    """
    encoders: dict[tuple[str, float], WindowEncoder] = {}
    listed = [_record_row(entry, encoders.setdefault(entry[:2], WindowEncoder())) for entry in entries]
    return pa.Table.from_pylist(listed, schema=RECORDS)


def _record_row(entry: Entry, encoder: WindowEncoder) -> dict[str, Any]:
    record = entry.record
    row = {"attempt": entry.attempt, "since_s": entry.since_s, "time_s": entry.time_s, "record": _kind(record)}
    if isinstance(record, Window):
        row |= {name: getattr(record, name) for name in ("host", "sequence", "start_s", "end_s")}
        return row | {"body": msgspec.msgpack.encode(encoder.encode(record))}
    return row | {"body": msgspec.msgpack.encode(record)}


def _kind(record: Record) -> str:
    return _WINDOW if isinstance(record, Window) else str(record.__struct_config__.tag)


def record_of(kind: str, body: bytes, decoder: WindowDecoder) -> Record:
    """The record of a row. Raises msgspec.DecodeError for what is none."""
    return decoder.decode(from_message(body)) if kind == _WINDOW else _tagged.decode(body)


def findings_table(findings: Iterable[Diagnosis]) -> pa.Table:
    """A row for each finding, in order; `line` is all of it, as in reports/schema/diagnosis.schema.json."""
    return pa.Table.from_pylist([_finding_row(finding) for finding in findings], schema=FINDINGS)


def _finding_row(finding: Diagnosis) -> dict[str, Any]:
    times_s = {name: getattr(finding, name) for name in ("named_s", "onset_s", "alarmed_s")}
    return {
        "attempt": finding.job,
        **times_s,
        "syndrome": str(finding.syndrome),
        "cause": str(finding.cause or ""),
        "component": str(finding.component),
        "confidence": finding.confidence,
        "line": encode(finding).decode(),
    }


def operations_table(entries: Iterable[Entry]) -> pa.Table:
    """A row for each operation that a rank has finished, in the order of windows; times are the host's own (ns)."""
    windows = [entry for entry in entries if isinstance(entry.record, Window)]
    of = [entry.record for entry in windows if isinstance(entry.record, Window)]
    table = rows((window.op_table for window in of), OP_ROW)
    which = np.repeat(np.arange(len(of)), [len(window.op_table) // OP_ROW.itemsize for window in of])
    callers, calls = _Names(of, "callers"), _Names(of, "calls")
    caller, call = callers.places(which, table["caller"]), calls.places(which, table["call"])
    ended = (table["finished"] > 0) & (caller >= 0) & (call >= 0)
    table, which, caller, call = table[ended], which[ended], caller[ended], call[ended]
    known: list[Caller] = callers.names
    called: list[CallName] = calls.names
    return pa.table(
        {
            "attempt": _taken([entry.attempt for entry in windows], which),
            "host": _taken([window.host for window in of], which),
            "comm": _taken([name.comm for name in known], caller),
            "rank": np.array([name.rank for name in known], np.int32)[caller],
            "kind": _taken([name.kind for name in called], call),
            "algorithm": _taken([name.algorithm for name in called], call),
            "dtype": _taken([name.dtype for name in called], call),
            "sequence": table["seq"],
            "size_bytes": table["size_bytes"],
            "entered_ns": table["entered"],
            "started_ns": table["started"],
            "finished_ns": table["finished"],
        }
    )


class _Names:
    """The names of one sort that windows have, one list after the other: windows that share a list have it once."""

    def __init__(self, windows: Sequence[Window], sort: str) -> None:
        self.names: list[Any] = []
        firsts: dict[int, int] = {}
        named: list[bool] = []
        for names in (getattr(window.names, sort) for window in windows):
            if id(names) not in firsts:
                firsts[id(names)] = len(named)
                named += [name is not None for name in names]
                self.names += [_BLANKS[sort] if name is None else name for name in names]
        self._named = np.array([*named, False])
        self._firsts = np.array([firsts[id(getattr(window.names, sort))] for window in windows], np.int64)
        self._counts = np.array([len(getattr(window.names, sort)) for window in windows], np.int64)

    def places(self, windows: "np.ndarray[Any, Any]", numbers: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Where the names of these windows' numbers are in `names`; -1 for a number that stands for nothing."""
        places = np.where(numbers < self._counts[windows], self._firsts[windows] + numbers, -1)
        return np.where(self._named[places], places, -1)


_BLANKS: dict[str, object] = {"callers": Caller("", 0), "calls": CallName("", "", "")}


def _taken(names: list[str], places: "np.ndarray[Any, Any]") -> pa.Array:
    """The names at these places, each kept once."""
    of: dict[str, int] = {}
    numbers = np.array([of.setdefault(name, len(of)) for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(numbers[places], pa.array(list(of), pa.string()))
