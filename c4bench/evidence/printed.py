"""The figures that benchmarks print: perftest, nccl-tests, the OSU benchmarks, ucx_perftest, qperf and ibv_*_pingpong.

Each has a unit of its own for a rate, and some call the same name different sizes: perftest and UCX mean 2^20 bytes by
MB, qperf, OSU and ibv_*_pingpong 10^6. Figures are in bit/s and seconds. Output that breaks off gives what it has.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

BANDWIDTH, LATENCY = "bit/s", "s"
_MEBI, _MEGA, _GIGA = float(1 << 20), 1e6, 1e9
_BYTES_BELOW = 1e18
# What launchers put before each line: srun --label, mpirun --tag-output.
_LABEL = re.compile(r"^(?:\[\d+,\d+\]<\w+>:|\s*\d+: )")


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


def figures(output: str) -> tuple[Figure, ...]:
    """All figures in what a program printed, in order; none where no tool is recognised."""
    lines = [_LABEL.sub("", line) for line in output.splitlines()]
    return tuple(found for read in _READERS for found in read(lines) if math.isfinite(found.value))


_PERFTEST_TITLE = re.compile(r"^\s*(?:RDMA_|Raw_)?(\w[\w ]*) Test\s*$")
_PERFTEST_COLUMN = re.compile(r"(?:BW |t_)?([\w.%]+)\[([\w/]+)\]")
_PERFTEST_UNITS = {
    "MB/sec": (8 * _MEBI, BANDWIDTH),
    "MiB/sec": (8 * _MEBI, BANDWIDTH),
    "Gb/sec": (_GIGA, BANDWIDTH),
    "usec": (1e-6, LATENCY),
}
# The column that is meant: the average rate, and the typical time or what there is in place of it.
_PERFTEST_WANTED = ("average", "typical", "avg")


def _perftest(lines: Sequence[str]) -> Iterator[Figure]:
    """A title, a line that names columns beginning with `#bytes #iterations`, and rows of numbers."""
    name, columns = "", []
    for line in lines:
        if title := _PERFTEST_TITLE.match(line):
            name = title[1].lower()
        elif line.split()[:2] == ["#bytes", "#iterations"]:
            columns = _PERFTEST_COLUMN.findall(line)
        elif columns and (row := _numbers(line, 2 + len(columns))):
            yield from _perftest_row(name, columns, row)


def _perftest_row(name: str, columns: Sequence[tuple[str, str]], row: Sequence[float]) -> Iterator[Figure]:
    place = {column: (value, unit) for (column, unit), value in zip(columns, row[2:], strict=False)}
    for wanted in _PERFTEST_WANTED:
        value, printed = place.get(wanted, (math.nan, ""))
        if printed in _PERFTEST_UNITS:
            factor, unit = _PERFTEST_UNITS[printed]
            yield Figure("perftest", name, value * factor, unit, int(row[0]))
            return


_NCCL_ROW = re.compile(r"^\s*(\d{1,18})\s+(\d+)\s+[a-z]\w+\s+\w+\s+-?\d+\s+(.+)$")
_NCCL_RATE = 8 * _GIGA


def _nccl_tests(lines: Sequence[str]) -> Iterator[Figure]:
    """Rows of size, count, type, operation, root; then time, algbw, busbw, #wrong out of place and in place.

    The figure is the bus bandwidth out of place; elements are counted in both places.
    """
    for line in lines:
        if match := _NCCL_ROW.match(line):
            columns = match[3].split()
            wrong = [_number(column) for column in columns[3:8:4]]
            if len(columns) >= 8 and math.isfinite(_number(columns[2])):
                known = [int(count) for count in wrong if math.isfinite(count)]
                yield Figure("nccl-tests", "busbw", _number(columns[2]) * _NCCL_RATE, BANDWIDTH, int(match[1]),
                             sum(known) if known else None)  # fmt: skip


_OSU_TITLE = re.compile(r"^# OSU (.+?) Test")
_OSU_UNIT = re.compile(r"\((MB/s|us)\)|(MB/s)")
_OSU_UNITS = {"MB/s": (8 * _MEGA, BANDWIDTH), "us": (1e-6, LATENCY)}


def _osu(lines: Sequence[str]) -> Iterator[Figure]:
    """A title, a line that names columns, with `Size` first where there is one, and rows; the first value counts."""
    name, unit, sized = "", "", False
    for line in lines:
        if title := _OSU_TITLE.match(line):
            name, unit = title[1].lower(), ""
        elif name and line.startswith("#") and (found := _OSU_UNIT.search(line)):
            unit, sized = found[1] or found[2], line[1:].split()[:1] == ["Size"]
        elif unit and (row := _numbers(line, 1 + sized)):
            factor, known = _OSU_UNITS[unit]
            yield Figure("osu", name, row[sized] * factor, known, int(row[0]) if sized else 0)


_UCX_SIZE = re.compile(r"^\| Message size:\s+(\d{1,18})\b")
_UCX_OVERALL = 3  # columns: iterations, then of time median, average, overall; of bandwidth average, overall
_UCX_BANDWIDTH = 5


def _ucx(lines: Sequence[str]) -> Iterator[Figure]:
    """The row `Final:` of ucx_perftest: the time of a message one way in a latency test, the rate in others."""
    latency, size_bytes = False, 0
    for line in lines:
        if "bandwidth (MB/s)" in line:
            latency = "latency (usec)" in line
        elif size := _UCX_SIZE.match(line):
            size_bytes = int(size[1])
        elif line.startswith("Final:") and (row := _numbers(line.removeprefix("Final:"), _UCX_BANDWIDTH + 1)):
            if latency:
                yield Figure("ucx_perftest", "latency", row[_UCX_OVERALL] * 1e-6, LATENCY, size_bytes)
            else:
                yield Figure("ucx_perftest", "bandwidth", row[_UCX_BANDWIDTH] * 8 * _MEBI, BANDWIDTH, size_bytes)


_QPERF_TEST = re.compile(r"^(\w+):\s*$")
_QPERF_VALUE = re.compile(r"^\s+(?:\w+_)?(bw|latency)\s+=\s+([\d.,]+) (\S+)\s*$")
_QPERF_UNITS = {
    **{f"{prefix}B/sec": (8 * 1000.0**power, BANDWIDTH) for power, prefix in enumerate(("", "K", "M", "G", "T"))},
    **{f"{prefix}b/sec": (1000.0**power, BANDWIDTH) for power, prefix in enumerate(("", "K", "M", "G", "T"))},
    "bytes/sec": (8.0, BANDWIDTH),
    "bits/sec": (1.0, BANDWIDTH),
    **{unit: (scale, LATENCY) for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("sec", 1.0))},
}


def _qperf(lines: Sequence[str]) -> Iterator[Figure]:
    """A test's name and a colon; then `bw = 787 MB/sec` or `latency = 66.4 us`."""
    name = ""
    for line in lines:
        if test := _QPERF_TEST.match(line):
            name = test[1]
        elif name and (found := _QPERF_VALUE.match(line)) and found[3] in _QPERF_UNITS:
            factor, unit = _QPERF_UNITS[found[3]]
            yield Figure("qperf", name, _number(found[2].replace(",", "")) * factor, unit)


_PINGPONG = re.compile(r"^(\d+) bytes in ([\d.]+) seconds = ([\d.]+) Mbit/sec$")


def _pingpong(lines: Sequence[str]) -> Iterator[Figure]:
    """`BYTES bytes in S seconds = RATE Mbit/sec`: both directions together."""
    for line in lines:
        if found := _PINGPONG.match(line):
            yield Figure("ibv_pingpong", "both directions", _number(found[3]) * _MEGA, BANDWIDTH)


_READERS: tuple[Callable[[Sequence[str]], Iterator[Figure]], ...] = (
    _perftest,
    _nccl_tests,
    _osu,
    _ucx,
    _qperf,
    _pingpong,
)


def _numbers(line: str, count: int) -> list[float]:
    """The first `count` words of a line, if all are numbers and the first is one of bytes; none for another line."""
    numbers = [_number(word) for word in line.split()[:count]]
    whole = len(numbers) == count and 0 <= numbers[0] < _BYTES_BELOW and not any(map(math.isnan, numbers[:2]))
    return numbers if whole else []


def _number(word: str) -> float:
    """A number; NaN for anything else."""
    try:
        return float(word)
    except ValueError:
        return math.nan
