"""Results of benchmarks as JSON: nccl-tests (`-J`) and perftest (`--out_json`).

Of nccl-tests, `env` is not read: it is the whole environment of the process, secrets included. perftest does not write
the unit of its bandwidths, so these are taken from its message rate, which is always in millions a second.
"""

from c4bench.evidence.fields import integer, kind, mapping, objects, real, text
from c4bench.evidence.limits import UnreadableError, json_data, short_name
from c4bench.model.evidence import BenchmarkResult, Reading, SourceFile

NCCL_TESTS = "nccl-tests"
PERFTEST = "perftest"
_CANNOT = "benchmarks: they time whole operations, not ranks, so they name none"
_GIGA_BYTES = 8e9


def recognises_nccl_tests(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is of nccl-tests."""
    return head.lstrip().startswith(b"{") and b'"nccl_version"' in head and b'"args"' in head


def recognises_perftest(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is of perftest."""
    return head.lstrip().startswith(b"{") and b'"test_info"' in head


def read_nccl_tests(data: bytes, file: str) -> Reading:
    """Bus bandwidth and wrong elements, out of place and in place. Raises UnreadableError."""
    report = mapping(json_data(data))
    if "results" not in report:
        raise UnreadableError("it is no report of nccl-tests: it has no results")
    name = short_name(kind(text(mapping(report.get("config")).get("test")))) or _named(report.get("args"))
    results = []
    for row in objects(report["results"]):
        for place in ("out_of_place", "in_place"):
            measured = mapping(row.get(place))
            rate = real(measured.get("bus_bw"))
            if rate >= 0:
                took_us = real(measured.get("time"), real(measured.get("cpu_time")))
                results.append(
                    BenchmarkResult(file, NCCL_TESTS, f"{name} {place}", integer(row.get("size")), rate * _GIGA_BYTES,
                                    took_us / 1e6 if took_us >= 0 else -1.0, max(0, integer(measured.get("nwrong"), 0)))
                )  # fmt: skip
    version = short_name(text(report.get("version")))
    return Reading(sources=(SourceFile(file, NCCL_TESTS, version, ()),), cannot_tell=(_CANNOT,),
                   benchmarks=tuple(results))  # fmt: skip


def _named(arguments: object) -> str:
    """The collective of a program such as `./build/all_reduce_perf`."""
    first = arguments[0] if isinstance(arguments, list) and arguments else arguments
    return short_name(text(first).split(" ")[0].rpartition("/")[2].removesuffix("_perf")) or "collective"


def read_perftest(data: bytes, file: str) -> Reading:
    """The rate between two NICs. Raises UnreadableError."""
    report = mapping(json_data(data))
    results = mapping(report.get("results"))
    size, rate = integer(results.get("MsgSize")), real(results.get("MsgRate"))
    name = short_name(text(mapping(report.get("test_info")).get("test"))) or "perftest"
    if size < 0 or rate < 0:
        raise UnreadableError("it has no MsgSize or no MsgRate", "results")
    found = BenchmarkResult(file, PERFTEST, name, size, rate * 1e6 * size * 8)
    return Reading(sources=(SourceFile(file, PERFTEST, "", ()),), cannot_tell=(_CANNOT,), benchmarks=(found,))
