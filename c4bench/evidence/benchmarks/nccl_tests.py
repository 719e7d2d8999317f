"""nccl-tests and rccl-tests (2018 to 2.20): tables, `-J` of nccl-tests, JSON lines, JSON array and CSV of rccl-tests.

Columns are found by their heading, as releases moved some. A column `error` of 2019 to 2021 is a rounding error and no
count of wrong elements; `N/A` is no check. Of the JSON of nccl-tests, `env` is not read: it is the whole environment of
the process, secrets included. Source: both projects' sources and documents of the columns.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from c4bench.evidence.benchmarks.run import FIGURES, GIGA, MICRO, NCCL_TESTS, RCCL_TESTS, Run, known, size
from c4bench.evidence.fields import integer, items, kind, mapping, objects, text
from c4bench.evidence.limits import MOST_RANKS, UnreadableError, json_data, json_data_or_cut, short_name
from c4bench.model.evidence import BenchmarkRow, BenchmarkRun

_RATE = 8 * GIGA
_SETTINGS = re.compile(r"^(?:# )?nThread \d+ .*?maxBytes (\d{1,18})\b")
_VERSION = re.compile(r"^(?:# )?(nccl|rccl)-tests:? [Vv]ersion:? ?([\w.:+-]{1,64})")
_STARTING = re.compile(r"^# Collective test starting: (\w{1,64})_perf")
_RANK = re.compile(r"^# +Rank +(\d{1,7}) (?:Group +\d+ +)?(?:Pid +\d+ )?on +(\S+) +device +\d+ +\[[\w:.]+\]( AMD)?")
_CHECKED = re.compile(r"^(?:# )?Out of bounds values : (\d{1,18}) (?:OK|FAILED)")
_AVERAGE = re.compile(r"^(?:# )?Avg bus bandwidth +: (\S+)( FAILED)?")
_FAILURE = re.compile(r"Test (?:\w{1,8} )?failure ")
_COMMAND = re.compile(r"\b([a-z]{3,16}(?:_[a-z]{1,16})?)_perf\b")
_FILE_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|broadcast|gather|scatter|reduce"
)
_PLACE = ("time", "algbw", "busbw", "#wrong")
# The columns of a row that was pasted without its heading: those of releases since 2021.
_COLUMNS = ("size", "count", "type", "redop", "root", *_PLACE, *_PLACE)
_ROUNDED = 0.05
_MILLI = 1e-3  # s, the unit of times in 2018, when the first column was `bytes`
_TEXT = re.compile(
    rb"#[ \t]+(?:size[ \t]+count|bytes[ \t]+N)[ \t]+type[ \t][^\n]{0,200}busbw|nThread \d{1,9} nGpus "
    rb"|# Collective test starting: |^[ \t]*\d{1,18}[ \t]+\d{1,18}[ \t]+[a-z]\w{2,12}[ \t]+[a-z]{3,8}[ \t]+-?\d{1,6}"
    rb"(?:[ \t]+[\d.]{1,12}){3}[ \t]+(?:\d|N/A)",
    re.MULTILINE,
)
# Looking for words is much cheaper than for expressions, and files may be long.
_WORDS = (b"busbw", b"nThread ", b"# Collective test", b"   sum  ", b"  none  ")
_ROW = (b'"algBw"', b'"busBw"', b'"inPlace"')
_CSV = re.compile(rb"^[\w, ]{0,40}name, ?(?:nodes, ?ranks|gpus),[\w, ]{0,100}busBw")


def recognises(data: bytes, _name: str) -> bool:
    """Whether a file has a table of nccl-tests or rccl-tests in it."""
    return any(word in data for word in _WORDS) and bool(_TEXT.search(data))


def runs(lines: Iterable[str], file: str) -> Iterator[BenchmarkRun]:
    """The runs in lines of text: settings with the ranks, a heading, a row for each size, and a summary."""
    table, command = _Table(), ""
    for written in lines:
        line = " ".join(written.split())
        if table.begins_with(line):
            if table.used:
                yield table.done(file)
                table = _Table()
            table.run.kind, command = table.run.kind or command, ""
        elif (named := _COMMAND.search(line)) and (table.run.ended or not table.used):
            command = kind(named[1])
        table.read_line(line)
    if table.used:
        yield table.done(file)


class _Table:
    """One run, line by line."""

    def __init__(self) -> None:
        self.run = Run(NCCL_TESTS)
        self._columns: tuple[str, ...] = ()
        self._checks = True
        self._settings = ""

    @property
    def used(self) -> bool:
        """Whether anything has come but what may stand before the settings."""
        return self.run.began or bool(self.run.rows)

    def begins_with(self, line: str) -> bool:
        """Whether a run begins with a line, and it is not one more of those before the ranks of this one."""
        settings = _SETTINGS.match(line)
        more = bool(self._settings) and not (self.run.ranks or self._columns)
        if more and (line == self._settings or not settings):
            return False
        return bool(settings or _VERSION.match(line) or _STARTING.match(line))

    def done(self, file: str) -> BenchmarkRun:
        """The run."""
        run = self.run
        run.kind = run.kind or _kind_by_rates(run.rows, run.ranks) or _kind_in(file) or "collective"
        return run.done(file, run.cut("its summary"))

    def read_line(self, line: str) -> None:
        """Read a line."""
        run = self.run
        if settings := _SETTINGS.match(line):
            run.began, run.wanted, self._checks = True, int(settings[1]), "validation: 0" not in line
            self._settings = line
        elif version := _VERSION.match(line):
            run.tool, run.version = f"{version[1]}-tests", version[2]
        elif starting := _STARTING.match(line):
            run.kind = kind(starting[1])
        elif rank := _RANK.match(line):
            self._member(rank)
        elif line.startswith("#") and " busbw" in line:
            columns = tuple(line[1:].split())
            # What comes after the last count of wrong elements, such as an algorithm or a time, is no measurement.
            end = 2 + len(columns) - 1 - columns[::-1].index("busbw")
            run.began, self._columns = True, columns[:end]
        elif checked := _CHECKED.match(line):
            run.failed = int(checked[1]) if self._checks else -1
        elif average := _AVERAGE.match(line):
            run.mean_bps, run.ended = known(average[1], _RATE), True
            if average[2]:
                run.error(line)
        elif _FAILURE.search(line):
            run.error(line)
        elif run.row and self._goes_on(line.split()):
            self._row([run.row, *[""] * (_first(self._columns) - 1), *line.split()])
        elif FIGURES.match(row := line.removeprefix("# ")) and not run.ended:
            self._row(row.split())

    def _member(self, rank: re.Match[str]) -> None:
        number = int(rank[1])
        if number < MOST_RANKS:
            self.run.ranks = max(self.run.ranks, number + 1)
            self.run.hosts[short_name(rank[2])] = None
            self.run.tool = RCCL_TESTS if rank[3] else self.run.tool

    def _row(self, words: Sequence[str]) -> None:
        """The figures of both places; of a row with other words than columns nothing is used."""
        columns = self._columns
        if not columns and len(words) == len(_COLUMNS) and words[2].isalnum() and not words[2].isdigit():
            columns = _COLUMNS
        if columns and len(words) >= len(columns) and _are_figures(words[_first(columns) : len(columns)]):
            self.run.row = ""
            self.run.rows += _places(words, columns)
        elif columns:
            self.run.row = words[0]

    def _goes_on(self, words: Sequence[str]) -> bool:
        """Whether a line is the figures of a row whose beginning other output has broken off."""
        figures = len(self._columns) - _first(self._columns)
        return len(words) == figures > 0 and _are_figures(words)


def _first(columns: Sequence[str]) -> int:
    """Where the figures begin: with the time, or that of the processor."""
    return next((at for at, column in enumerate(columns) if column in ("time", "cputime")), len(columns))


def _are_figures(words: Iterable[str]) -> bool:
    return all(word == "N/A" or known(word) >= 0 for word in words)


def _places(words: Sequence[str], columns: Sequence[str]) -> Iterator[BenchmarkRow]:
    """Out of place and in place: time, rate, bus bandwidth and, where they are counted, wrong elements."""
    for number, at in enumerate(place for place, column in enumerate(columns) if column == "busbw"):
        rate_bps = known(words[at], _RATE)
        wrong = known(words[at + 1]) if columns[at + 1 : at + 2] == ("#wrong",) else -1.0
        if rate_bps >= 0:
            took_s = known(words[at - 2], MICRO if columns[0] == "size" else _MILLI)
            yield BenchmarkRow(size(words[0]), rate_bps, took_s, wrong=int(wrong), in_place=number > 0)


def _kind_by_rates(rows: Iterable[BenchmarkRow], ranks: int) -> str:
    """`all_reduce` where bus bandwidths are what only it has by its times: 2(n-1)/n of the rate, of n ranks.

    Source: nccl-tests, doc/PERFORMANCE.md. Other collectives have ratios in common.
    """
    ratios = [
        row.bandwidth_bps * row.mean_s / (8 * row.size_bytes) for row in rows if row.size_bytes and row.mean_s > 0
    ]
    expected = 2 * (ranks - 1) / ranks if ranks > 2 else 0.0
    alike = bool(ratios) and all(abs(ratio - expected) < _ROUNDED * expected for ratio in ratios)
    return "all_reduce" if alike else ""


def _kind_in(file: str) -> str:
    """The collective that a file is named after; empty if it is named after none."""
    named = _FILE_NAME.search(file.rpartition("/")[2].lower())
    return kind(named[0]) if named else ""


def recognises_json(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` is JSON of nccl-tests, or JSON or CSV of rccl-tests."""
    start = head.lstrip()
    if start.startswith(b"{") and b'"nccl_version"' in head and b'"args"' in head:
        return True
    return (start[:1] in (b"{", b"[") and all(name in head for name in _ROW)) or bool(_CSV.match(start))


def json_runs(data: bytes, file: str) -> list[BenchmarkRun]:
    """The runs in JSON of nccl-tests, or JSON or CSV of rccl-tests. Raises UnreadableError."""
    if b'"nccl_version"' in data:
        report, cut = json_data_or_cut(data)
        return [_of_nccl(mapping(report), file, cut)]
    data = data.replace(b"\r\n", b"\n")
    if _CSV.match(data.lstrip()):
        return _of_rccl(csv.DictReader(data.decode("utf-8", "replace").split("\n"), skipinitialspace=True), file, "")
    rows, cut = _objects(data)
    return _of_rccl(rows, file, cut)


def _of_nccl(report: Mapping[str, Any], file: str, cut: str) -> BenchmarkRun:
    """`-J` of nccl-tests; `cut` says what is missing of it."""
    if "results" not in report:
        raise UnreadableError(cut or "it is no report of nccl-tests: it has no results")
    arguments = report.get("args")
    command = text(arguments[0] if isinstance(arguments, list) and arguments else arguments)
    named = _COMMAND.search(command)
    called = kind(text(mapping(report.get("config")).get("test"))) or (kind(named[1]) if named else "collective")
    run = Run(NCCL_TESTS, short_name(called), short_name(text(report.get("version"))))
    for row in objects(report["results"]):
        for place in ("out_of_place", "in_place"):
            found = mapping(row.get(place))
            rate_bps, took_s = known(found.get("bus_bw"), _RATE), known(found.get("time", found.get("cpu_time")), MICRO)
            if rate_bps >= 0:
                wrong = max(-1, integer(found.get("nwrong")))
                run.rows.append(
                    BenchmarkRow(size(row.get("size")), rate_bps, took_s, wrong=wrong, in_place=place == "in_place")
                )
    for device in objects(report.get("devices")):
        run.ranks = max(run.ranks, min(integer(device.get("rank")), MOST_RANKS - 1) + 1)
        run.hosts[short_name(text(device.get("hostname")))] = None
    for said in items(report.get("errors")):
        run.error(text(said))
    run.failed = max(-1, integer(mapping(report.get("out_of_bounds")).get("count")))
    run.mean_bps = known(mapping(report.get("average_bus_bandwidth")).get("bandwidth"), _RATE)
    return run.done(file, cut if run.rows else "it has no results")


def _objects(data: bytes) -> tuple[list[Mapping[str, Any]], str]:
    """The objects of a list, or of a file that has one a line, and what is missing of it.

    rccl-tests writes brackets around its lines and no commas between them.
    """
    if data.lstrip().startswith(b"["):
        try:
            return list(objects(json_data(data))), ""
        except UnreadableError:
            pass  # a list without commas, or one that is cut
    rows: list[Mapping[str, Any]] = []
    lines = data.strip().split(b"\n")
    for number, line in enumerate(lines, start=1):
        whole = line.strip().strip(b",").removeprefix(b"[").removesuffix(b"]").strip()
        if whole:
            try:
                rows.append(mapping(json_data(whole)))
            except UnreadableError as error:
                if number == len(lines) and rows:
                    return rows, f"its line {number} is cut"
                raise UnreadableError(error.reason, f"line {number}") from None
    open_ended = data.lstrip().startswith(b"[") and not data.rstrip().endswith(b"]")
    return rows, "its closing bracket is missing" if open_ended else ""


def _of_rccl(rows: Iterable[Mapping[str, Any]], file: str, cut: str) -> list[BenchmarkRun]:
    """One object or line for each size and place; those of one collective, type and number of ranks are a run."""
    found: dict[tuple[str, int], Run] = {}
    for row in rows:
        called, ranks = (
            short_name(kind(str(row.get("name", "")))) or "collective",
            integer(row.get("ranks", row.get("gpus")), 0),
        )
        run = found.setdefault((called, ranks), Run(RCCL_TESTS, called, ranks=ranks if 0 < ranks < MOST_RANKS else 0))
        rate_bps = known(row.get("busBw"), _RATE)
        wrong = max(-1, integer(row.get("wrong", row.get("#wrong"))))
        if rate_bps >= 0:
            took_s, in_place = known(row.get("time"), MICRO), str(row.get("inPlace")) == "1"
            run.rows.append(BenchmarkRow(size(row.get("size")), rate_bps, took_s, wrong=wrong, in_place=in_place))
    return [run.done(file, cut) for run in found.values() if run.rows]
