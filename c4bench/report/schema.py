"""JSON Schemas of what c4bench writes for others to read, from the very types that write it."""

from pathlib import Path
from typing import Any

import msgspec

from c4bench.doctor.document import Document
from c4bench.inventory.facts import HostFacts
from c4bench.inventory.review import Review
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Event
from c4bench.record.line import MeasurementLine
from c4bench.record.provenance import Provenance
from c4bench.resources import resource

_DOCUMENTS: dict[str, Any] = {
    "measurement": MeasurementLine,
    "run": Provenance,
    "diagnosis": Diagnosis,
    "doctor": Document,
    "facts": HostFacts,
    "inventory": Review,
    "event": Event,
}


def schemas() -> dict[str, bytes]:
    """The text of each file of `reports/schema`, by file name."""
    return {f"{name}.schema.json": _text(kind) for name, kind in _DOCUMENTS.items()}


def write_schemas(folder: Path | None = None) -> None:
    """Write them; into `reports/schema` if no folder is named."""
    target = folder or resource("reports", "schema")
    for name, text in schemas().items():
        (target / name).write_bytes(text)


def _text(kind: Any) -> bytes:  # noqa: ANN401  (a struct, or a union of some)
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | msgspec.json.schema(kind)
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
