"""Record a bench figure and print it at once."""

import sys

from c4bench.model.measurement import Clock, Measurement
from c4bench.record import Ledger, RunDirectory
from c4bench.report.headlines import sentence


def note(
    run: RunDirectory,
    suite: str,
    name: str,
    value: float,
    *,
    clock: Clock,
    unit: str = "1",
    at_least: float | None = None,
    at_most: float | None = None,
    **labels: str | float,
) -> Measurement:
    """Compare a figure with its limit, if any, record it in `run` and print it."""
    measurement = Ledger(run, f"bench.{suite}").measure(
        name,
        value,
        unit,
        at_least=at_least,
        at_most=at_most,
        clock=clock,
        **labels,  # type: ignore[arg-type]
    )
    sys.stdout.write(f"{measurement.outcome:<13} {sentence(measurement)}\n")
    sys.stdout.flush()
    return measurement
