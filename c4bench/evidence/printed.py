"""What benchmarks print: nccl-tests and rccl-tests, perftest, OSU's, ucx_perftest, qperf and ibv_*_pingpong.

Output that breaks off gives what it has, and says so; nothing is computed that the tool has not printed.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from c4bench.evidence.benchmarks import nccl_tests, others, perftest
from c4bench.evidence.benchmarks.run import NCCL_TESTS, RCCL_TESTS
from c4bench.evidence.lines import plain
from c4bench.model.evidence import BenchmarkRun

BANDWIDTH, LATENCY = "bit/s", "s"


class Figure(msgspec.Struct, frozen=True):
    """What `tool` printed of its test `name` for one message size (0: not said), in `unit`.

    `wrong` counts the elements that were not what they should be; None where the tool does not check them.
    """

    tool: str
    name: str
    value: float
    unit: str
    size_bytes: int = 0
    wrong: int | None = None


_READERS: tuple[Callable[[Sequence[str], str], Iterator[BenchmarkRun]], ...] = (
    perftest.runs,
    nccl_tests.runs,
    others.osu_runs,
    others.ucx_runs,
    others.qperf_runs,
    others.pingpong_runs,
)


def runs(output: str, file: str = "") -> tuple[BenchmarkRun, ...]:
    """The runs of benchmarks in what programs printed; none where no tool is recognised.

    Lines of several ranks are told apart by what a launcher has put before them.
    """
    streams: dict[int, list[str]] = {}
    for written in output.split("\n"):
        line = plain(written)
        streams.setdefault(line.rank, []).append(line.text)
    return tuple(run for lines in streams.values() for read in _READERS for run in read(lines, file))


def figures(output: str) -> tuple[Figure, ...]:
    """One figure for each size that a benchmark measured, in order; none where no tool is recognised.

    Of a collective it is the bus bandwidth out of place, with the wrong elements of both places.
    """
    return tuple(figure for run in runs(output) for figure in _figures(run))


def _figures(run: BenchmarkRun) -> Iterator[Figure]:
    collective = run.tool in (NCCL_TESTS, RCCL_TESTS)
    name = "busbw" if collective else run.kind
    for row in run.rows:
        if collective and row.in_place:
            continue
        checked = [other.wrong for other in run.rows if other.size_bytes == row.size_bytes and other.wrong >= 0]
        wrong = sum(checked) if collective and checked else None
        if row.bandwidth_bps >= 0:
            yield Figure(run.tool, name, row.bandwidth_bps, BANDWIDTH, row.size_bytes, wrong)
        else:
            time_s = row.typical_s if row.typical_s >= 0 else row.mean_s
            yield Figure(run.tool, name, time_s, LATENCY, row.size_bytes, wrong)
