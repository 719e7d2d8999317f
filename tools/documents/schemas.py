"""JSON Schemas of the files that c4bench writes for others or reads from them, generated from their types."""

from pathlib import Path
from typing import Any

import msgspec

from c4bench.doctor.files import SavedDocument
from c4bench.doctor.overview import Document
from c4bench.inventory.fabric import FabricFacts
from c4bench.inventory.facts import HostFacts
from c4bench.inventory.review import Review
from c4bench.model.diagnosis import Diagnosis
from c4bench.model.event import Event
from c4bench.model.evidence import EvidenceReport
from c4bench.model.hook import HookInput
from c4bench.model.hypothesis import Explanation
from c4bench.model.recording import TaggedRecord
from c4bench.record.provenance import Provenance
from c4bench.record.run import MeasurementLine
from c4bench.resources import resource
from c4bench.wire.window_codec import EncodedWindow
from c4bench.workload.diloco.parameters import Diloco
from c4bench.workload.job_file import JobFile
from c4bench.workload.learning import Learning

# The types in each file.
_DOCUMENTS: dict[str, Any] = {
    "measurement": MeasurementLine,
    "run": Provenance,
    "diagnosis": Diagnosis,
    "explanation": Explanation,
    "evidence": EvidenceReport,
    "doctor": Document,
    "saved": SavedDocument,
    "facts": HostFacts,
    "fabric": FabricFacts,
    "inventory": Review,
    "event": Event,
    "hook": HookInput,
}
# A line of telemetry is of one of these types.
_TELEMETRY = (EncodedWindow, TaggedRecord)
# The parameters of programs for JOB.yml. Those of other programs, which tests run, are checked only when a job starts.
_PROGRAMS: dict[str, Any] = {"diloco": Diloco, "learning": Learning}


def schemas() -> dict[str, bytes]:
    """The text of each file of `reports/schema`, by file name."""
    documents = {name: msgspec.json.schema(kind) for name, kind in _DOCUMENTS.items()}
    either, parts = msgspec.json.schema_components(_TELEMETRY, ref_template="#/$defs/{name}")
    documents["telemetry"] = {"anyOf": either, "$defs": parts}
    documents["job"] = _job()
    return {f"{name}.schema.json": _text(schema) for name, schema in documents.items()}


def _job() -> dict[str, Any]:
    """JOB.yml, whose `parameters` are those of its `program`."""
    (job, *parameters), parts = msgspec.json.schema_components(
        (JobFile, *_PROGRAMS.values()), ref_template="#/$defs/{name}"
    )
    default = JobFile(name="").program
    chosen = [
        {
            "if": {"properties": {"program": {"const": name}}} | ({} if name == default else {"required": ["program"]}),
            "then": {"properties": {"parameters": own}},
        }
        for name, own in zip(_PROGRAMS, parameters, strict=True)
    ]
    return {"allOf": [job, *chosen], "$defs": parts}


def write_schemas(folder: Path | None = None) -> None:
    """Write the schemas to `folder`, by default to `reports/schema`."""
    target = folder or resource("reports", "schema")
    for name, text in schemas().items():
        (target / name).write_bytes(text)


def _text(schema: dict[str, Any]) -> bytes:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
