"""Text of the OSU benchmarks, ucx_perftest, qperf and ibv_*_pingpong.

UCX means 2^20 bytes by MB; qperf, OSU and ibv_*_pingpong mean 10^6.
"""

import re
from collections.abc import Iterable, Iterator

from c4bench.evidence.benchmarks.run import MEBI, MEGA, MICRO, OSU, UCX, Run, known, size
from c4bench.model.evidence import BenchmarkRow, BenchmarkRun

QPERF, PINGPONG = "qperf", "ibv_pingpong"
_TEXT = re.compile(
    rb"# OSU [\w /-]{2,60} Test|\| Test: {2,}\w|Final: {2,}\d|\| +bandwidth \(MB/s\) +\|"
    rb"|\d bytes in [\d.]{1,20} seconds = [\d.]{1,20} Mbit/sec"
    rb"|^(?:tcp|udp|rc|uc|ud|ver|sctp|rds|sdp)_\w{1,20}:\s*\n +\w+ +=",
    re.MULTILINE,
)
_WORDS = (b"# OSU ", b"| Test: ", b"Final: ", b"bandwidth (MB/s)", b"Mbit/sec", b"bw ", b"latency ", b"msg_rate ")
_OSU_TITLE = re.compile(r"^# OSU (.{1,60}?) Test(?: v(\S{1,20}))?")
# After rows, any other heading is another tool's.
_OSU_ON = re.compile(r"# ?(?:Size|Datatype|Avg|Overall)\b")
_OSU_UNIT = re.compile(r"\((MB/s|us)\)|(MB/s)")


def recognises(data: bytes, _name: str) -> bool:
    """Whether a file has text of one of these in it."""
    return any(word in data for word in _WORDS) and bool(_TEXT.search(data))


def osu_runs(lines: Iterable[str], file: str) -> Iterator[BenchmarkRun]:
    """A title, a line that names columns, with `Size` first where there is one, and rows; the first value counts.

    Nothing marks the end, so that only a row that breaks off shows a cut. Version 7 can print whether data were right.
    """
    run, columns, unit, sized = Run(OSU), 0, "", False
    for written in lines:
        line = written.strip()
        words = line.split()
        if title := _OSU_TITLE.match(line):
            if run.began:
                yield run.done(file, _osu_cut(run))
            run, unit = Run(OSU, title[1].lower(), title[2] or "", began=True), ""
        elif run.rows and line.startswith("#") and not _OSU_ON.match(line):
            yield run.done(file, _osu_cut(run))
            run, unit = Run(OSU), ""
        elif run.began and line.startswith("#") and (found := _OSU_UNIT.search(line)):
            unit, sized = found[1] or found[2], words[1:2] == ["Size"] or line.startswith("#Size")
            columns = 1 + sized
        elif unit and words and all(known(word) >= 0 for word in words[:columns]):
            if len(words) < columns:
                run.row = words[0]
            else:
                run.row = ""
                value, failed = known(words[sized]), "Fail" in words[columns:]
                at = size(words[0]) if sized else 0
                run.rows.append(
                    BenchmarkRow(at, value * 8 * MEGA, failed=failed)
                    if unit == "MB/s"
                    else BenchmarkRow(at, mean_s=value * MICRO, failed=failed)
                )
    if run.began:
        yield run.done(file, _osu_cut(run))


def _osu_cut(run: Run) -> str:
    run.ended = bool(run.rows) and not run.row
    return run.cut("the next one")


_UCX_TEST = re.compile(r"^\| Test: +(\S.{0,60}?) *\|")
_UCX_SIZE = re.compile(r"^\| Message size:\s+(\d{1,18})\b")
# Of several tests in one run each has a row with its name.
_UCX_BATCH = re.compile(r"^\| +Test +\| # iterations ")
_UCX_ROW = re.compile(r"^[\w./-]{1,64} +\d{1,18} +[\d.]+ +[\d.]+ ")
_UCX_COLUMNS = 6  # iterations; median, average, overall of a time; average, overall of a rate


def ucx_runs(lines: Iterable[str], file: str) -> Iterator[BenchmarkRun]:
    """The row `Final:` of ucx_perftest: the time of a message one way in a latency test, the rate in others."""
    run, latency, size_bytes, stage, batch = Run(UCX), False, 0, False, False
    for line in lines:
        batch = batch or bool(_UCX_BATCH.match(line))
        if "bandwidth (MB/s)" in line:
            latency, stage = "latency (usec)" in line, True
            run = Run(UCX, run.kind or ("latency" if latency else "bandwidth"), began=True)
        elif test := _UCX_TEST.match(line):
            run.kind = test[1].lower()
        elif found := _UCX_SIZE.match(line):
            size_bytes = int(found[1])
        elif line.startswith("Final:") or (batch and _UCX_ROW.match(line)):
            if batch:
                run.kind = line.split()[0]
                latency = "lat" in run.kind
            values = [known(word) for word in line.split()[1 : 1 + _UCX_COLUMNS]]
            if len(values) == _UCX_COLUMNS and min(values) >= 0:
                run.ended, stage = True, False
                run.rows.append(
                    BenchmarkRow(size_bytes, mean_s=values[3] * MICRO)
                    if latency
                    else BenchmarkRow(size_bytes, values[5] * 8 * MEBI)
                )
                yield run.done(file, "")
                run = Run(UCX)
    if stage and run.began:
        yield run.done(file, run.cut("its last line"))


_QPERF_TEST = re.compile(r"^(\w{1,40}):\s*$")
_QPERF_VALUE = re.compile(r"^\s+(?:\w+_)?(bw|latency)\s+=\s+([\d.,]{1,40}) (\S{1,20})\s*$")
_PREFIXES = ("", "K", "M", "G", "T")
_QPERF_RATES = {
    **{f"{prefix}B/sec": 8 * 1000.0**power for power, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}b/sec": 1000.0**power for power, prefix in enumerate(_PREFIXES)},
    "bytes/sec": 8.0,
    "bits/sec": 1.0,
}
_QPERF_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0}


def qperf_runs(lines: Iterable[str], file: str) -> Iterator[BenchmarkRun]:
    """A test's name and a colon; then `bw = 787 MB/sec` or `latency = 66.4 us`."""
    name = ""
    for line in lines:
        if test := _QPERF_TEST.match(line):
            name = test[1]
        elif name and (found := _QPERF_VALUE.match(line)):
            value, unit = known(found[2]), found[3]
            if value >= 0 and unit in _QPERF_RATES:
                row = BenchmarkRow(0, value * _QPERF_RATES[unit])
            elif value >= 0 and unit in _QPERF_TIMES:
                row = BenchmarkRow(0, mean_s=value * _QPERF_TIMES[unit])
            else:
                continue
            yield BenchmarkRun(file, QPERF, name, (row,))


_PINGPONG = re.compile(r"^\d{1,18} bytes in [\d.]{1,20} seconds = ([\d.]{1,20}) Mbit/sec$")


def pingpong_runs(lines: Iterable[str], file: str) -> Iterator[BenchmarkRun]:
    """`BYTES bytes in S seconds = RATE Mbit/sec`: both directions together."""
    for line in lines:
        if (found := _PINGPONG.match(line)) and known(found[1]) >= 0:
            yield BenchmarkRun(file, PINGPONG, "both directions", (BenchmarkRow(0, known(found[1]) * MEGA),))
