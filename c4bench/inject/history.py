"""The history of faults: what was asked, what took effect and what ended, a line each, in the telemetry's clock."""

import os
from pathlib import Path
from typing import Protocol

import msgspec

Field = str | float | bool | None


class History(Protocol):
    """Where operations are noted; a run directory is one."""

    def event(self, time_s: float, kind: str, **fields: Field) -> None:
        """Add a line."""


class HistoryFile:
    """A file of JSON lines, `{"time_s", "kind", ...}`, as a run's `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def event(self, time_s: float, kind: str, **fields: Field) -> None:
        """Add a line, whole, whoever else writes."""
        line = msgspec.json.encode({"time_s": time_s, "kind": kind} | dict(sorted(fields.items()))) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
