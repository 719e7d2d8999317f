"""A measurement in one line, for a terminal."""

from c4bench.model.measurement import Measurement
from c4bench.report.headlines import labels_written, limit_written, written


def words(measurement: Measurement) -> str:
    """`pass  link.goodput_fraction = 0.9989 (≥ 0.99)  bytes 1048576 · rate 1e10`."""
    limit = limit_written(measurement)
    labels = labels_written(measurement)
    return (
        f"{measurement.outcome:<13}{measurement.name} = {written(measurement)}"
        f"{f' ({limit})' if limit else ''}{f'  {labels}' if labels else ''}"
    )
