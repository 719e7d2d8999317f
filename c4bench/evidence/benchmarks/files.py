"""Files of benchmarks, by format: text of any of them among other text, and the JSON of two."""

from collections.abc import Sequence

from c4bench.evidence.benchmarks import matrix, nccl_tests, others, perftest
from c4bench.evidence.limits import MOST_LINES, NothingToldError, UnreadableError
from c4bench.evidence.printed import runs
from c4bench.model.evidence import BenchmarkRun, Reading, SourceFile

TEXT, NCCL_JSON, PERFTEST_JSON, PAIRS = "printed benchmark", "nccl-tests JSON", "perftest JSON", "table of pairs"
_CANNOT = "benchmarks: they time whole operations, not ranks, so they name none"
_TEXTS = (perftest.recognises, nccl_tests.recognises, others.recognises)


def recognises_text(data: bytes, name: str) -> bool:
    """Whether a benchmark's output stands in a file."""
    return any(recognises(data, name) for recognises in _TEXTS)


def read_text(data: bytes, file: str) -> Reading:
    """All runs in a file. Raises UnreadableError if there is none, or too much text."""
    if data.count(b"\n") > MOST_LINES:
        raise UnreadableError(f"it has more than {MOST_LINES} lines")
    found = runs(data.decode("utf-8", "replace"), file)
    if not found:
        raise NothingToldError("it has the heading of a benchmark, and no line of it that can be read")
    return _reading(found, file)


def read_nccl_json(data: bytes, file: str) -> Reading:
    """JSON of nccl-tests, or JSON or CSV of rccl-tests. Raises UnreadableError."""
    found = nccl_tests.json_runs(data, file)
    if not found:
        raise UnreadableError("it has no row with a bus bandwidth")
    return _reading(found, file)


def read_perftest_json(data: bytes, file: str) -> Reading:
    """What perftest writes with `--out_json`. Raises UnreadableError."""
    return _reading(perftest.json_runs(data, file), file)


def read_pairs(data: bytes, file: str) -> Reading:
    """A matrix or list of what was measured between many ends. Raises UnreadableError."""
    found = matrix.runs(data, file)
    if not found:
        raise UnreadableError("it is a table of pairs without a number")
    return _reading(found, file)


def _reading(found: Sequence[BenchmarkRun], file: str) -> Reading:
    """The runs, with a source for each tool and version."""
    tools = dict.fromkeys((run.tool, run.version) for run in found)
    sources = tuple(SourceFile(file, tool, version, ()) for tool, version in tools)
    return Reading(sources=sources, cannot_tell=(_CANNOT,), benchmarks=tuple(found))
