"""A figure of a bench: written down, and said as it is taken."""

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
    """Hold a figure against its limit, if it has one, and write it into `run`."""
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
