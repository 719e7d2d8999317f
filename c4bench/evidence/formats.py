"""The formats that can be read: the one place where a reader is registered."""

from collections.abc import Callable
from typing import NamedTuple

from c4bench import extensions
from c4bench.evidence import chakra, flight_recorder, inspector, kineto, logs, ras, torchfrtrace
from c4bench.evidence.benchmarks import files, matrix, nccl_tests, perftest
from c4bench.model.evidence import Reading

HEAD_BYTES = 65_536


class FileFormat(NamedTuple):
    """A format: whether a file is of it, by its first bytes and its name; and what all of its bytes tell.

    A `part` is text that may stand among other text in a file, at any place: all bytes show whether it is there.
    """

    name: str
    recognises: Callable[[bytes, str], bool]
    read: Callable[[bytes, str], Reading]
    part: bool = False


# In the order of trying: what is told by few words in a file comes after what is told by its own.
_OWN = (
    FileFormat(ras.FORMAT, ras.recognises, ras.read, part=True),
    FileFormat(ras.EVENTS, ras.recognises_events, ras.read_events),
    FileFormat(inspector.FORMAT, inspector.recognises, inspector.read),
    FileFormat(inspector.METRICS, inspector.recognises_metrics, inspector.read_metrics),
    FileFormat(kineto.FORMAT, kineto.recognises, kineto.read),
    FileFormat(files.NCCL_JSON, nccl_tests.recognises_json, files.read_nccl_json),
    FileFormat(files.PERFTEST_JSON, perftest.recognises_json, files.read_perftest_json),
    FileFormat(files.TEXT, files.recognises_text, files.read_text, part=True),
    FileFormat(chakra.FORMAT, chakra.recognises, chakra.read),
    FileFormat(f"{chakra.FORMAT} (JSON)", chakra.recognises_json, chakra.read_json),
    FileFormat(chakra.TORCH, chakra.recognises_torch, chakra.read_torch),
    FileFormat(flight_recorder.FORMAT, flight_recorder.recognises, flight_recorder.read),
    FileFormat(torchfrtrace.FORMAT, torchfrtrace.recognises, torchfrtrace.read, part=True),
    FileFormat(logs.FORMAT, logs.recognises, logs.read, part=True),
    FileFormat(files.PAIRS, matrix.recognises, files.read_pairs),
)
# Those of others come after ours.
FORMATS: extensions.Registry[FileFormat] = extensions.Registry(
    extensions.EVIDENCE, "a FileFormat", lambda: {one.name: one for one in _OWN}, extensions.is_a(FileFormat)
)


def formats_of(data: bytes, name: str) -> list[FileFormat]:
    """The formats that a file is of: the first that is a whole file's, or each whose text stands in it."""
    head, parts = data[:HEAD_BYTES], list[FileFormat]()
    for one in FORMATS.values():
        if one.part:
            parts += [one] if one.recognises(data, name) else []
        elif not parts and one.recognises(head, name):
            return [one]
    return parts
