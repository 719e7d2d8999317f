"""Run directories: provenance, measurements, events and artefacts of a run in one folder."""

from c4bench.record.begin import begin
from c4bench.record.provenance import Provenance
from c4bench.record.run import Ledger, RunDirectory

__all__ = ["Ledger", "Provenance", "RunDirectory", "begin"]
