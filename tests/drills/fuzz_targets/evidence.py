"""Files of other tools, as `c4bench detect` reads and judges them, and the command as a whole."""

import contextlib
import io
import json
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from case_truths import CASES
from evidence_mutations import originals
from fuzz_mutations import of
from fuzzing import Target

from c4bench.cli.main import main
from c4bench.evidence.collect import parse
from c4bench.evidence.judging.judge import judge
from c4bench.evidence.limits import UnreadableError, unpacked

SEEDS = Path(__file__).parents[1] / "fuzz_seeds"
FILES = dict(originals())


def recorded(*names):
    """Outputs and files of other tools, as they print and write them."""
    return tuple((SEEDS / name).read_bytes() for name in names)


def cases(pattern):
    """Cases of other tools' files, by what their paths match."""
    return tuple(path.read_bytes() for path in sorted(CASES.glob(pattern)))


_MATRIX = b"Gb/s\n   n1 n2 n3\nn1 - 190 80\nn2 188 - 190\nn3 79 191 -\n"
_LIST = b"source,destination,bw Gb/s\nn1,n2,190\nn2,n1,80\nn1,n3,190\nn3,n1,180\n"
RAS_TEXT, RAS_JSON = FILES["ras_0s.txt"], FILES["ras_0s.json"]
_RAS_TEXTS = (RAS_TEXT, FILES["ras.txt"], *recorded("ras_ahead.txt", "ras_missing.txt", "ras_then_log.txt"))
_NCCL_TESTS = {
    "nccl_version": 23007, "version": "2.17.6", "args": ["./build/all_reduce_perf"], "config": {"test": "all_reduce"},
    "results": [{"size": 1024, "out_of_place": {"time": 10.0, "bus_bw": 1.75, "nwrong": "0"},
                 "in_place": {"cpu_time": 10.0, "bus_bw": 1.75, "nwrong": 0}}],
}  # fmt: skip
_LOGS = ("watchdog.log", "nccl_debug.log", "nccl_tests.txt", "perftest.txt", "torchfrtrace.txt")
_PERFTEST = {"test_info": {"test": "Send_BW"}, "results": {"MsgSize": 65536, "MsgRate": 0.18, "BW_average": 98.0}}


@contextmanager
def _read(_folder, name):
    """What a file of that name tells, judged."""

    def consume(data):
        judge(parse(unpacked(data), Path(name)))

    yield consume


class _Strict(io.StringIO):
    """What is printed must print: a terminal obeys what does not."""

    def write(self, text):
        text.encode()
        assert all(line.isprintable() for line in text.split("\n")), f"printed {text[:200]!r}"
        return len(text)


@contextmanager
def _detected(folder, *options):
    """`c4bench detect` of a file, with what it prints."""

    def consume(data):
        path = folder / "ras.txt"
        path.write_bytes(data)
        with contextlib.redirect_stdout(_Strict()), contextlib.redirect_stderr(_Strict()):
            main(["detect", str(path), *options])

    yield consume


def _some(form, *names):
    return of(form, *(FILES[name] for name in names))


def _json(*documents):
    return of("json", *(json.dumps(one).encode() for one in documents))


def _target(name, corpus, file):
    return Target(f"evidence-{name}", corpus, partial(_read, name=file), (UnreadableError,))


TARGETS = (
    _target("ras-text", of("text", *_RAS_TEXTS), "ras.txt"),
    _target("ras-json", _some("json", "ras_0s.json", "ras.json"), "ras.json"),
    _target("ras-events", _some("text", "events.txt", "events.json"), "events.txt"),
    _target("pickle", _some("binary", "rank_0", "rank_1", "rank_2"), "rank_0"),
    _target("flight-json", _some("json", "rank_0.json", "rank_2.json"), "trace_rank_0.json"),
    _target("inspector", _some("lines", "h0-pid1000.log", "h1-pid1001.log"), "h0-pid1000.log"),
    _target("kineto", _some("json", "rank_0.pt.trace.json"), "rank_0.pt.trace.json"),
    _target("gzip", _some("binary", "rank_0.pt.trace.json.gz"), "rank_0.pt.trace.json.gz"),
    _target("chakra", of("binary", *recorded("chakra.2.et")), "chakra.2.et"),
    _target("chakra-json", of("text", *recorded("jsonizer.json", "workload_graph.json")), "chakra.json"),
    _target("torch-trace", of("json", *map(unpacked, cases("12*/*.json.gz"))), "et.json"),
    _target("inspector-metrics", of("text", *cases("10*/prometheus/*")), "metrics.prom"),
    _target("nccl-tests", _json(_NCCL_TESTS), "out.json"),
    _target("perftest", _json(_PERFTEST), "out.json"),
    _target("rccl-tests", of("lines", *cases("09*/*")), "out.json"),
    _target("perftest-unquoted", of("text", *cases("08*/*old*.json")), "out.json"),
    _target("benchmark-text", of("text", *cases("07*/*"), *cases("08*/*.txt")), "gpu1_to_gpu2.txt"),
    _target("pairs", of("text", _MATRIX, _LIST), "pairs.csv"),
    Target("evidence-logs", of("text", *recorded(*_LOGS)), partial(_read, name="stderr.log"),
           (UnreadableError,), sound=False),
    Target("detect", of("text", *_RAS_TEXTS, RAS_JSON), _detected),
    Target("detect-explain", of("text", *_RAS_TEXTS, RAS_JSON),
           lambda folder: _detected(folder, "--explain", "--json")),
    Target("detect-reasons", of("text", *_RAS_TEXTS), lambda folder: _detected(folder, "--reasons", "slurm")),
)  # fmt: skip
