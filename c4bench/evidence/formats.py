"""The formats that can be read: the one place where a reader is registered."""

from collections.abc import Callable
from typing import NamedTuple

from c4bench import extensions
from c4bench.evidence import benchmarks, chakra, flight_recorder, inspector, kineto, ras, torchfrtrace
from c4bench.model.evidence import Reading

HEAD_BYTES = 65_536


class FileFormat(NamedTuple):
    """A format: whether a file is of it, by its first bytes and its name; and what all of its bytes tell."""

    name: str
    recognises: Callable[[bytes, str], bool]
    read: Callable[[bytes, str], Reading]


# In the order of trying: what is told by few words in a file comes after what is told by its own.
_OWN = (
    FileFormat(ras.FORMAT, ras.recognises, ras.read),
    FileFormat(ras.EVENTS, ras.recognises_events, ras.read_events),
    FileFormat(inspector.FORMAT, inspector.recognises, inspector.read),
    FileFormat(kineto.FORMAT, kineto.recognises, kineto.read),
    FileFormat(benchmarks.NCCL_TESTS, benchmarks.recognises_nccl_tests, benchmarks.read_nccl_tests),
    FileFormat(benchmarks.PERFTEST, benchmarks.recognises_perftest, benchmarks.read_perftest),
    FileFormat(chakra.FORMAT, chakra.recognises, chakra.read),
    FileFormat(flight_recorder.FORMAT, flight_recorder.recognises, flight_recorder.read),
    FileFormat(torchfrtrace.FORMAT, torchfrtrace.recognises, torchfrtrace.read),
)
# Those of others come after ours.
FORMATS: extensions.Registry[FileFormat] = extensions.Registry(
    extensions.EVIDENCE, "a FileFormat", lambda: {one.name: one for one in _OWN}, extensions.is_a(FileFormat)
)


def format_of(data: bytes, name: str) -> FileFormat | None:
    """The first format that a file is of; None if it is of none."""
    head = data[:HEAD_BYTES]
    return next((one for one in FORMATS.values() if one.recognises(head, name)), None)
