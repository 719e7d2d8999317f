"""The layouts that many tools share: tables with a line of dashes, and lines of a name and a value."""

import re
from collections.abc import Iterator

import msgspec

from c4bench.decoding import DecodingError, json_in

_DASHES = re.compile(r"\s*-{2,}(?:\s+-{2,})*\s*")
_GAP = re.compile(r"\s{2,}")
_MOST_LINES = 200_000


class About(msgspec.Struct, frozen=True):
    """What is known of an output beside its text: the interface or the port that it is about, "" for unknown."""

    port: str = ""


def tables(text: str) -> Iterator[list[dict[str, str]]]:
    """The tables in a text, each as its rows by heading: a heading, a line of dashes, rows up to an empty line."""
    lines = text.splitlines()[:_MOST_LINES]
    for number, line in enumerate(lines):
        if number and _DASHES.fullmatch(line) and lines[number - 1].strip():
            spans = [match.span() for match in re.finditer(r"-+", line)]
            heading = _cells(lines[number - 1], spans)
            rows: list[dict[str, str]] = []
            for row in lines[number + 1 :]:
                if not row.strip() or _DASHES.fullmatch(row):
                    break
                rows.append(dict(zip(heading, _cells(row, spans), strict=False)))
            yield rows


def _cells(line: str, spans: list[tuple[int, int]]) -> list[str]:
    """The cells of a line: what wide gaps divide if that gives one for each column, else what is below the dashes."""
    divided = _GAP.split(line.strip())
    if len(divided) == len(spans):
        return divided
    words = line.split()
    if len(words) == len(spans):
        return words
    return [line[start : max(end, start)].strip() for start, end in spans]


def pairs(text: str, divider: str = ":") -> Iterator[tuple[str, str]]:
    """The lines `name: value` of a text, without the spaces around both."""
    for line in text.splitlines()[:_MOST_LINES]:
        name, found, value = line.partition(divider)
        if found and name.strip():
            yield name.strip(), value.strip()


def json_object(text: str) -> dict[str, object]:
    """The JSON object in a text, after lines of other text; empty if there is none."""
    try:
        return json_in(text, dict[str, object])
    except DecodingError:
        return {}


def json_list(text: str) -> list[dict[str, object]]:
    """The JSON list of objects in a text, after lines of other text; empty if there is none."""
    try:
        return json_in(text, list[dict[str, object]])
    except DecodingError:
        return []


def number_in(text: str) -> float:
    """The first number in a text, 0 for none."""
    match = re.search(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3})?", text[:200])
    return float(match[0]) if match and len(match[0]) < 40 else 0.0


def whole_in(text: str, longest: int = 9) -> int:
    """The first whole number in a text, of `longest` digits at most; 0 for none."""
    match = re.search(r"(?a:\d+)", text[:200])
    return int(match[0]) if match and len(match[0]) <= longest else 0
