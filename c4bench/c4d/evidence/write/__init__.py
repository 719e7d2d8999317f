"""Writes our own recordings in the formats of other tools, so that these can be tried on the lab's faults."""

from collections.abc import Callable, Iterator

from c4bench.c4d.evidence.write import flight_recorder, inspector, kineto, ras
from c4bench.c4d.evidence.write.history import History

# By the name of a format: the files, by name, that it has for a job.
WRITERS: dict[str, Callable[[History], Iterator[tuple[str, bytes]]]] = {
    "flight-recorder": flight_recorder.files,
    "ras": ras.files,
    "inspector": inspector.files,
    "kineto": kineto.files,
}
