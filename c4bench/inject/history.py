"""The history of faults: a line for each request, onset and end, on the telemetry's clock."""

import os
from pathlib import Path
from typing import Protocol

import msgspec

from c4bench.inject.protocol import Applied, Healed
from c4bench.model.fault import FaultRequest

Field = str | float | bool | None


class History(Protocol):
    """Where events are recorded; a run directory is one."""

    def event(self, time_s: float, kind: str, **fields: Field) -> None:
        """Add a line."""


class HistoryFile:
    """A file of JSON lines, `{"time_s", "kind", ...}`, as a run's `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def event(self, time_s: float, kind: str, **fields: Field) -> None:
        """Add a line, in one write, since others append to the file too."""
        line = msgspec.json.encode({"time_s": time_s, "kind": kind} | dict(sorted(fields.items()))) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def applied_event(applied: Applied, request: FaultRequest) -> dict[str, Field]:
    """The fields of an onset, besides its time."""
    witness = applied.witness
    values = {f"before_{name}": value for name, value in witness.before.items()}
    values |= {f"during_{name}": value for name, value in witness.during.items()}
    return {
        "fault": applied.fault,
        "host": request.host,
        "target": str(applied.target) if applied.target else "",
        "observed_s": witness.observed_s,
        "seen": witness.seen,
        **request.parameters,
        **values,
    }


def healed_event(healed: Healed, applied: Applied, request: FaultRequest) -> dict[str, Field]:
    """The fields of an end, besides its time."""
    return {
        "fault": applied.fault,
        "host": request.host,
        "target": str(applied.target) if applied.target else "",
        "reason": healed.reason,
        "by": healed.by,
        "recovered": healed.recovered,
        "residue": "; ".join(healed.residue),
    }
