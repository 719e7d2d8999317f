"""Run directories: provenance, measurements, events and artefacts of a run in one folder."""

from c4bench.record.provenance import Provenance
from c4bench.record.run import Ledger, RunDirectory, begin

__all__ = ["Ledger", "Provenance", "RunDirectory", "begin"]
