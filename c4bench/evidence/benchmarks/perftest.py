"""perftest (`ib_write_bw`, `ib_send_lat`, ...): its tables, and `--out_json`, which before 24.01 is no JSON.

`MB/sec` is 2^20 bytes, as `MiB/sec` is since 24.10. GIDs are printed with their bytes in decimal. Its JSON does not say
the unit of rates, so these are taken from the message rate, which is always in millions a second. A latency is no rate.
Source: perftest's `perftest_parameters.c`, and what 4.5 prints.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any

from c4bench.evidence.benchmarks.run import FIGURES, GIGA, MEBI, MEGA, MICRO, PERFTEST, Run, known, size
from c4bench.evidence.fields import integer, mapping, objects, text
from c4bench.evidence.limits import UnreadableError, json_data, short_name
from c4bench.model.evidence import BenchmarkRow, BenchmarkRun

_TEXT = re.compile(
    rb"#bytes +#iterations +|Unable to init the socket connection"
    rb"|^ {0,40}(?:RDMA_|Raw_)?\w[\w ]{0,60} Test\s*?\n Dual-port ",
    re.MULTILINE,
)
# What is looked for first, as that is fast in logs of gigabytes.
_WORDS = (b"#iterations", b" Test", b"init the socket connection")
_RULE = re.compile(r"^\s*-{20,}\s*$")
_TITLE = re.compile(r"^\s*(?:RDMA_|Raw_)?(\w[\w ]*) Test\s*$")
_COLUMN = re.compile(r"((?:[\d.]{1,5}% )?(?:BW )?\w+)\[([\w/%]+)\]")
_DEVICE = re.compile(r"\bDevice +: (\S+)")
_END = re.compile(r"^ *(local|remote) address: LID (0x)?(\w{1,8}) ")
_GID = re.compile(r"^ *GID: ([\da-fA-F:]{15,80})\s*$")
_CONNECTIONS = re.compile(r"^ *Number of qps +: (\d{1,6})\b")
_NO_CONNECTION = re.compile(r"Couldn't connect to (\S{1,253}):\d+\s*$|Unable to init the socket connection")
_SERVES = "Waiting for client to connect"
_ERROR = re.compile(
    r"Couldn't connect|Completion with error|Failed status \d|[Uu]nable to |Failed to |IB device .* not found|timed out"
)
_RATES = {"MB/sec": 8 * MEBI, "MiB/sec": 8 * MEBI, "Gb/sec": GIGA}
# Columns of the text; in JSON percentiles have other names.
_MEAN, _TYPICAL, _P99, _P999, _LONGEST = "t_avg", "t_typical", "99% percentile", "99.9% percentile", "t_max"
_IN_JSON = {_MEAN: _MEAN, _TYPICAL: _TYPICAL, _P99: "percentile_99", _P999: "percentile_99.9", _LONGEST: _LONGEST}
_RESULTS = ("results", "results_local", "results_remote")
_JSON = re.compile(rb'^\s*\{\s*"?test_info"?\s*:')
_PAIR = re.compile(r'^\s*"?([\w.]{1,40})"?\s*:\s*"?(.*?)"?\s*,?\s*$')


def recognises(data: bytes, _name: str) -> bool:
    """Whether a file has a table of perftest in it."""
    return any(word in data for word in _WORDS) and bool(_TEXT.search(data))


def runs(lines: Iterable[str], file: str) -> Iterator[BenchmarkRun]:
    """The runs in lines of text: a title, settings and both ends, a line that names columns, rows, and a rule."""
    table, serves = _Table(), False
    for line in lines:
        title = _TITLE.match(line)
        if table.used and (title or _SERVES in line or (table.columns and _names_columns(line))):
            yield table.done(file)
            table = _Table()
        serves = serves or _SERVES in line
        if title:
            table.run.began, table.run.kind = True, title[1].lower()
            table.run.serves, serves = serves, False
        elif not table.used and _NO_CONNECTION.search(line):
            table.run.began, table.run.kind = True, "connection"
        table.read_line(line)
    if table.used:
        yield table.done(file)


def _names_columns(line: str) -> bool:
    return line.split()[:2] == ["#bytes", "#iterations"]


class _Table:
    """One run, line by line."""

    def __init__(self) -> None:
        self.run = Run(PERFTEST)
        self.columns: tuple[tuple[str, str], ...] = ()
        self._end = "local"

    @property
    def used(self) -> bool:
        """Whether its title or its columns have come."""
        return self.run.began

    def done(self, file: str) -> BenchmarkRun:
        """The run."""
        self.run.kind = self.run.kind or "test"
        return self.run.done(file, self.run.cut("the closing line"))

    def read_line(self, line: str) -> None:
        """Read a line."""
        run = self.run
        if _names_columns(line):
            run.began, self.columns = True, tuple(_COLUMN.findall(line))
        elif self.columns and _RULE.match(line):
            run.ended = run.ended or bool(run.rows)
        elif self.columns and FIGURES.match(line) and not run.ended:
            self._row(line.split())
        elif device := _DEVICE.search(line):
            run.nic = short_name(device[1])
        elif connections := _CONNECTIONS.match(line):
            run.connections = int(connections[1])
        elif end := _END.match(line):
            self._end = end[1]
            lid = _lid(end[3], 16 if end[2] else 10)
            run.ends.update({self._end: f"lid {lid}"} if lid else {})
        elif gid := _GID.match(line):
            run.ends[self._end] = _address(gid[1])
        elif run.began and _ERROR.search(line):
            run.error(line)

    def _row(self, words: Sequence[str]) -> None:
        """A rate, or times; a row with fewer words than columns is cut, and none of it is used."""
        if len(words) < 2 + len(self.columns):
            self.run.row = words[0]
            return
        if "inf" in words:
            self.run.error("it could not find out the processor's tick rate: its figures are infinite")
            return
        rate_bps, times = -1.0, dict[str, object]()
        for (column, unit), word in zip(self.columns, words[2:], strict=False):
            if column == "BW average" and unit in _RATES:
                rate_bps = known(word, _RATES[unit])
            elif unit == "usec":
                times[column] = word
        self.run.rows += _row(words[0], rate_bps, times)


def _row(size_bytes: object, rate_bps: float, times: Mapping[str, object]) -> Iterator[BenchmarkRow]:
    """A row, if it has a rate or a time; times are in microseconds, by the names of the text's columns."""
    mean_s, typical_s, p99_s, p999_s, longest_s = (known(times.get(name), MICRO) for name in _IN_JSON)
    if size(size_bytes) >= 0 and max(rate_bps, mean_s, typical_s) >= 0:
        yield BenchmarkRow(size(size_bytes), rate_bps, mean_s, typical_s, p99_s, p999_s, longest_s)


def _lid(digits: str, base: int) -> int:
    try:
        return int(digits, base)
    except ValueError:
        return 0


def _address(printed: str) -> str:
    """The address in a GID whose 16 bytes are printed in decimal, or in hexadecimal; empty if it is none."""
    parts = printed.split(":")
    base = 10 if printed.replace(":", "").isdigit() else 16
    try:
        numbers = bytes(int(part, base) for part in parts)
        address = IPv6Address(numbers)
    except ValueError:
        return ""
    return str(address.ipv4_mapped or address)


def recognises_json(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is what `--out_json` writes, of any release."""
    return bool(_JSON.match(head))


def json_runs(data: bytes, file: str) -> list[BenchmarkRun]:
    """The run in a file of `--out_json`. Raises UnreadableError."""
    try:
        report = mapping(json_data(data))
    except UnreadableError:
        report = _unquoted(data)
    settings = mapping(report.get("test_info"))
    title = text(settings.get("test")).replace("_", " ").removeprefix("RDMA ").removesuffix(" Test")
    run = Run(PERFTEST, short_name(title.lower()) or "test", nic=short_name(text(settings.get("Device"))))
    run.connections = max(0, integer(settings.get("Number_of_qps")))
    for name, found in report.items():
        if name in _RESULTS:
            for results in objects(found) if isinstance(found, list) else [mapping(found)]:
                run.rows += _json_row(results)
    if not run.rows:
        cut = "it is cut, or " if not data.rstrip().endswith(b"}") else ""
        raise UnreadableError(f"{cut}it has no MsgSize, or neither a MsgRate nor times", "results")
    return [run.done(file, "")]


def _json_row(results: Mapping[str, Any]) -> Iterator[BenchmarkRow]:
    size_bytes, messages = results.get("MsgSize"), known(results.get("MsgRate"), MEGA)
    rate_bps = messages * size(size_bytes) * 8 if messages >= 0 else -1.0
    return _row(size_bytes, rate_bps, {name: results.get(key) for name, key in _IN_JSON.items()})


def _unquoted(data: bytes) -> dict[str, dict[str, str]]:
    """The form before 24.01: names and texts without quotes, and a comma after the last of a list."""
    report: dict[str, dict[str, str]] = {}
    part: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        pair = _PAIR.match(line)
        if pair and pair[2] == "{":
            part = report.setdefault(pair[1], {})
        elif pair:
            part[pair[1]] = pair[2]
    return report
