"""Tables of what a script measured between many ends: a matrix (a row a sender, a column a receiver), or a list.

The first line of the table names its columns. A matrix has the same names before its rows; a list has columns for the
source, the destination and a rate or time. The unit stands in the heading of the column, or in a line above.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from c4bench.evidence.benchmarks.ends import MATRIX
from c4bench.evidence.benchmarks.run import GIGA, MEBI, MEGA, MICRO, known
from c4bench.evidence.limits import UnreadableError, short_name
from c4bench.model.evidence import BenchmarkRow, BenchmarkRun

_FEWEST = 3  # names of a matrix, or rows of a list
_HEAD_LINES = 40
_SOURCE = re.compile(r"(?:src|source|from|client|sender)(?:_?(?:host|node|nic))?|(?:host|node)_?[1a]")
_DESTINATION = re.compile(r"(?:dst|dest(?:ination)?|to|server|receiver)(?:_?(?:host|node|nic))?|(?:host|node)_?[2b]")
_UNITS = (
    (re.compile(r"Gb(?:it)?(?:/s|ps)|gbps|gbit"), GIGA, False),
    (re.compile(r"GB(?:/s|ps)"), 8 * GIGA, False),
    (re.compile(r"Mb(?:it)?(?:/s|ps)|mbps|mbit"), MEGA, False),
    (re.compile(r"MB/sec|MiB/s"), 8 * MEBI, False),
    (re.compile(r"MB/s"), 8 * MEGA, False),
    (re.compile(r"\busec\b|\(us\)|\[us\]|_us\b"), MICRO, True),
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_FAILED = re.compile(r"(?:fail|err|time[-_ ]?d?[-_ ]?out|unreach|refused|no[-_ ]conn)[\w -]{0,40}", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][\w./:-]{0,80}")


class _Table(NamedTuple):
    """The words of a heading, those of the rows below it, and the lines above it."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    above: str


def recognises(head: bytes, _name: str) -> bool:
    """Whether a file that begins with `head` has such a table in its first lines."""
    return _found(head.decode("utf-8", "replace")) is not None


def runs(data: bytes, file: str) -> list[BenchmarkRun]:
    """A run for each pair. Raises UnreadableError if no unit is stated."""
    table = _found(data.decode("utf-8", "replace"))
    assert table is not None, "asked for a file that was recognised"
    places = _places(table.heading)
    column = table.heading[places[2]] if places else ""
    unit = next((unit for unit in _UNITS if unit[0].search(f"{column}\n{table.above}")), None)
    if unit is None:
        raise UnreadableError("it is a table of pairs that states no unit; write it above, such as Gbit/s or usec")
    pairs = _listed(table, places) if places else _crossed(table)
    _, scale, timed = unit
    return [_run(file, source, destination, word, scale, timed) for source, destination, word in pairs]


def _run(file: str, source: str, destination: str, word: str, scale: float, timed: bool) -> BenchmarkRun:
    value, failed = known(word, scale), bool(_FAILED.fullmatch(word))
    row = BenchmarkRow(0, mean_s=value) if timed else BenchmarkRow(0, value)
    return BenchmarkRun(
        file,
        MATRIX,
        "latency" if timed else "bandwidth",
        () if failed else (row,),
        errors=(short_name(word),) if failed else (),
        local=short_name(source),
        remote=short_name(destination),
    )


def _found(output: str) -> _Table | None:
    """The first table of pairs that begins in the first lines."""
    lines = [_words(line) for line in output.split("\n")]
    for at, heading in enumerate(lines[:_HEAD_LINES]):
        below = lines[at + 1 :]
        if _places(heading) and sum(len(row) == len(heading) for row in below) >= _FEWEST:
            return _Table(heading, [row for row in below if len(row) == len(heading)], _above(output, at))
        names = [word for word in heading if word]
        if sum(row[:1] == [name] for name in names[:1] for row in below) == 0:
            names = names[1:]  # the first is what stands in the corner
        rows = [row for row in below if row and row[0] in names and len(row) == len(names) + 1]
        named = len(names) >= _FEWEST and len(set(names)) == len(names) and all(map(_is_name, names))
        if named and len(rows) >= _FEWEST and any(_NUMBER.fullmatch(word) for row in rows for word in row[1:]):
            return _Table(names, rows, _above(output, at))
    return None


def _above(output: str, at: int) -> str:
    return "\n".join(output.split("\n", at + 1)[: at + 1])


def _words(line: str) -> list[str]:
    """The cells of a line: between commas, semicolons or tabs where there are any, else between blanks."""
    separator = next((one for one in ("\t", ",", ";", "|") if line.count(one) > 1), None)
    return [word.strip() for word in line.strip("\r |#").split(separator)]


def _is_result(word: str) -> bool:
    return bool(_NUMBER.fullmatch(word) or _FAILED.fullmatch(word))


def _is_name(word: str) -> bool:
    return bool(_NAME.fullmatch(word)) and not _NUMBER.fullmatch(word)


def _places(heading: Sequence[str]) -> tuple[int, int, int] | None:
    """Where a list has its source, its destination, and the first column with a unit; None for no list."""
    names = [word.lower() for word in heading]
    sources = [at for at, name in enumerate(names) if _SOURCE.fullmatch(name)]
    destinations = [at for at, name in enumerate(names) if _DESTINATION.fullmatch(name)]
    values = [at for at, word in enumerate(heading) if any(unit[0].search(word) for unit in _UNITS)]
    if not (sources and destinations and values):
        return None
    return sources[0], destinations[0], values[0]


def _listed(table: _Table, places: tuple[int, int, int]) -> list[tuple[str, str, str]]:
    rows = [(row[places[0]], row[places[1]], row[places[2]]) for row in table.rows]
    return [row for row in rows if _is_result(row[2]) and row[0] != row[1] and row[0] and row[1]]


def _crossed(table: _Table) -> list[tuple[str, str, str]]:
    """The pairs of a matrix; those without a number, and of a name with itself, were not measured."""
    return [
        (row[0], name, word)
        for row in table.rows
        for name, word in zip(table.heading, row[1:], strict=True)
        if _is_result(word) and name != row[0]
    ]
