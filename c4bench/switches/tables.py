"""What switches' commands print alike: tables with a line of dashes below the names of the columns, and lists."""

from collections.abc import Iterator

from c4bench.decoding import whole_number


def rows_of(text: str) -> Iterator[dict[str, str]]:
    """The rows of all tables, each by the names of its columns; the dashes give the columns' widths."""
    lines = text.splitlines()
    names = rule = ""
    for above, line in zip(["", *lines], lines, strict=False):
        if line.strip() and not set(line) - set("- "):
            names, rule = above, line
        elif rule and line.strip():
            yield _cells(names, rule, line)
        else:
            rule = rule if line.strip() else ""


def _cells(names: str, rule: str, row: str) -> dict[str, str]:
    cells, start = {}, 0
    for dashes in rule.split():
        start = rule.index(dashes, start)
        end = start + len(dashes)
        cells[names[start:end].strip()] = row[start:end].strip()
        start = end
    return cells


def numbers(text: object) -> tuple[int, ...]:
    """The numbers of `3,4` or `3-4`."""
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found += range(whole_number(first), min(whole_number(last or first), whole_number(first) + 64) + 1)
    return tuple(found)
